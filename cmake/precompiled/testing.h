// Headers that tests include most (see precompiled.cmake).
#include "telling.h"

#include <gtest/gtest.h>
