// Everything that a program needs to talk to its peers, under the name that an installed library has: #include <tsp/tsp.h>.
#pragma once

#include <tsp/core/tsp.h>
