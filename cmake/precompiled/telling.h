// Headers that sources of layers and launcher include most (see precompiled.cmake).
#include "moving.h"
#include <nlohmann/json.hpp>
