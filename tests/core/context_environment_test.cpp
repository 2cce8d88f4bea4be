// A rank refuses variables that it can't use, by their names.
#include "tests/support/refusal.h"
#include "tsprun/context.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace tsprun::detail::test::context_environment_test {
namespace {

/// Returns the words with which a world of one refuses the value.
std::string refusal_of(const char* variable, const char* value) {
  ::setenv(variable, value, 1);
  std::string text = refused_text([] { const Context alone = Context::from_environment(); });
  ::unsetenv(variable);
  return text;
}

TEST(ContextFromEnvironment, RefusesValuesByTheVariablesName) {
  EXPECT_EQ(refusal_of("TSP_LOG_LEVEL", "verbose"),
            "TSP_LOG_LEVEL=verbose: trace, debug, info, warn, error, critical and off work");
  EXPECT_EQ(refusal_of("TSP_LOG_LEVEL", "warn"), "");
  EXPECT_EQ(refusal_of("TSP_FAULTS", "kill:rank=9,step=1"), "TSP_FAULTS kill:rank=9,step=1: rank=9, but the ranks are 0 to 0");
  EXPECT_EQ(refusal_of("TSP_FAULTS", "kil:rank=0").rfind("TSP_FAULTS kil:rank=0: there is no kind 'kil'", 0), 0U);
  EXPECT_EQ(refusal_of("TSP_FAULTS", "kill:rank=0,step=7"), "");
  EXPECT_EQ(refusal_of("TSP_ALGORITHMS", "nonsense").rfind("TSP_ALGORITHMS=nonsense: ", 0), 0U);
  EXPECT_EQ(refusal_of("TSP_ALGORITHMS", "all_reduce=ring"), "");
}

}  // namespace
}  // namespace tsprun::detail::test::context_environment_test
