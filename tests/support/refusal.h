// What a call refuses, for tests of the words.
#pragma once

#include "transport/cause.h"

#include <gtest/gtest.h>

#include <string>

namespace tsprun::detail::test {

/// Returns the text of the Error(refused) that `call` throws, or nothing if it throws none. An Error of another cause fails the
/// test.
template <class Call>
std::string refused_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace tsprun::detail::test
