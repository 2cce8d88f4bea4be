// Levels of kernels: which the machine offers, judged by what the compiler's builtins and the architecture say.
#include "core/kernels/level.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace tsprun::detail::test::level_test {
namespace {

using kernels::Level;

TEST(KernelLevel, OfferedAreThoseOfTheProcessor) {
  EXPECT_TRUE(kernels::offers(Level::baseline));
  EXPECT_TRUE(kernels::offers(kernels::best_level()));
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  EXPECT_EQ(kernels::offers(Level::avx2), avx2);
  EXPECT_LE(kernels::offers(Level::avx512), __builtin_cpu_supports("avx512bw") != 0);
#elif defined(__aarch64__)
  EXPECT_EQ(kernels::best_level(), Level::neon);
#endif
}

TEST(KernelLevel, NoneOfAnotherArchitectureIsOffered) {
#if defined(__aarch64__)
  constexpr Level kOthers[] = {Level::avx2, Level::avx512, Level::avx512_bf16, Level::amx_bf16};
#else
  constexpr Level kOthers[] = {Level::neon};
#endif
  for (const Level other : kOthers) {
    EXPECT_FALSE(kernels::offers(other)) << name(other);
    try {
      kernels::set_level(other);
      ADD_FAILURE() << name(other);
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("this machine offers"), std::string::npos) << error.what();
    }
  }
}

TEST(KernelLevel, ItsNameLeadsBackToIt) {
  for (int i = 0; i <= static_cast<int>(Level::amx_bf16); ++i)
    EXPECT_EQ(kernels::level_from_name(name(static_cast<Level>(i))), static_cast<Level>(i));
  EXPECT_FALSE(kernels::level_from_name("sse4"));
}

}  // namespace
}  // namespace tsprun::detail::test::level_test
