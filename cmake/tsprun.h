// Everything that a program needs to talk to its peers, under the name that an installed library has: #include <tsprun/tsprun.h>.
#pragma once

#include <tsprun/core/tsprun.h>
