// What counts as a rank's silence, look by look.
#include "launcher/silence.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tsprun::detail::launcher::silence_test {
namespace {

constexpr std::uint64_t kLook = 100;
constexpr std::uint64_t kLongest = 2 * kLook;

struct Looks {
  Silence silence;
  std::uint64_t now = 1000;

  void look(const Glance& glance, std::uint64_t after = kLook) {
    now += after;
    silence.look(glance, now, kLongest);
  }
};

TEST(Silence, GrowsWhileNothingIsSeenOfAStoppedOrSleepingRank) {
  for (const char state : {'T', 'S'}) {
    Looks looks;
    for (int i = 0; i < 11; ++i) looks.look({.signs = 7, .state = state, .cpu = 3});
    EXPECT_EQ(looks.silence.ns(), 10 * kLook);
  }
}

TEST(Silence, GrowsWhileARankSpins) {
  Looks looks;
  for (std::uint64_t i = 0; i < 11; ++i) looks.look({.signs = 7, .state = 'R', .cpu = i});
  EXPECT_EQ(looks.silence.ns(), 10 * kLook);
}

TEST(Silence, EndsWithEverySign) {
  Looks looks;
  for (std::uint64_t i = 0; i < 11; ++i) looks.look({.signs = i / 3, .state = 'S', .cpu = 0});
  EXPECT_EQ(looks.silence.ns(), kLook);  // looks 9 and 10 saw the same
}

TEST(Silence, DoesNotCountTimeWithoutACoreOrInTheKernelOrUnderADebugger) {
  for (const char state : {'R', 'D', 't'}) {
    Looks looks;
    for (int i = 0; i < 11; ++i) looks.look({.signs = 7, .state = state, .cpu = 3});
    EXPECT_EQ(looks.silence.ns(), 0U) << state;
  }
}

TEST(Silence, DoesNotCountTimeInWhichNobodyLooked) {
  Looks looks;
  looks.look({.signs = 7, .state = 'S', .cpu = 3});
  looks.look({.signs = 7, .state = 'S', .cpu = 3}, 1'000'000);
  EXPECT_EQ(looks.silence.ns(), kLongest);
}

}  // namespace
}  // namespace tsprun::detail::launcher::silence_test
