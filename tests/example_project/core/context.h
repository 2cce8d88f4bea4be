// The program's own: the package has a header of this name, too, and neither may be taken for the other.
#pragma once

inline const char* greeting() { return "rank"; }
