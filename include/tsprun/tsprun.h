// Everything that a program needs to talk to its peers. The headers of this folder are the library's whole public interface.
#pragma once

#include "tsprun/communicator.h"
#include "tsprun/context.h"
#include "tsprun/error.h"
#include "tsprun/key_value.h"
#include "tsprun/memory.h"
#include "tsprun/progress.h"
#include "tsprun/trace.h"
#include "tsprun/types.h"
#include "tsprun/work.h"
