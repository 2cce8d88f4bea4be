// Everything that a program needs to talk to its peers.
#pragma once

#include "core/collectives/communicator.h"
#include "core/context.h"
#include "core/memory/heap.h"
#include "core/tensor/dtype.h"
#include "transport/cause.h"
