// Products have the same bits with each of OpenBLAS's cores that has the same instructions, however deep it cuts K: a process for
// each core, as OpenBLAS is loaded once.

#include "core/kernels/blas.h"
#include "core/kernels/gemm.h"
#include "core/kernels/level.h"
#include "tests/core/kernel_support.h"
#include "tests/support/process.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace tsprun::detail::test::gemm_cores_test {
namespace {

constexpr const char* kAsked = "TSPRUN_TEST_PRINTS_BITS";

/// Returns a number that stands for all bits of products of several shapes, whose sums are longer than any core's cut.
std::uint64_t bits_of_products(DType dtype) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a
  for (const auto& [m, n, k] :
       {std::tuple<std::size_t, std::size_t, std::size_t>{96, 130, 1000}, {37, 64, 400}, {40, 33, 2100}}) {
    const Array a = Array::normal(dtype, {m, k}, 1);
    const Array b = Array::normal(dtype, {k, n}, 2);
    Array c(dtype, {m, n});
    kernels::gemm({}, c.view(), a.view(), b.view());
    const Tensor view = c.view();
    for (std::size_t i = 0; i < view.bytes(); ++i)
      hash = (hash ^ std::to_integer<std::uint64_t>(view.data()[i])) * 1099511628211ULL;
  }
  return hash;
}

/// Returns the bits of products in a process of its own that takes `core`'s kernels; empty if this OpenBLAS has none for it.
std::string bits_with(const std::string& core) {
  ProcessOptions options;
  options.environment = {{"OPENBLAS_CORETYPE", core}, {kAsked, "1"}};
  const Finished run = run_program(
      {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_filter=GemmOfACore.HasTheBitsOfCoresThatCutKElsewhere"},
      options);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const std::string begin = "core " + core + " bits ";
  const std::size_t at = run.out.find(begin);
  if (at == std::string::npos) return {};
  const std::size_t first = at + begin.size();
  return run.out.substr(first, run.out.find('.', first) - first);
}

TEST(GemmOfACore, HasTheBitsOfCoresThatCutKElsewhere) {
  if (std::getenv(kAsked) != nullptr) {  // this is such a process; at `baseline` the user chooses the core
    kernels::set_level(kernels::Level::baseline);
    std::printf("core %s bits %llx %llx.\n", kernels::blas::core_name().c_str(),
                static_cast<unsigned long long>(bits_of_products(DType::f32)),
                static_cast<unsigned long long>(bits_of_products(DType::f64)));
    return;
  }
  int compared = 0;
  // In f32 OpenBLAS 0.3.21 cuts K at 448 for SkylakeX and at 320 for Cooperlake, as later versions do for SkylakeX on some
  // machines.
  for (const auto& [one, other] : {std::pair{"SkylakeX", "Cooperlake"}, {"Haswell", "Zen"}}) {
    const std::string bits = bits_with(one);
    const std::string others = bits_with(other);
    if (bits.empty() || others.empty()) continue;  // this machine, or this OpenBLAS, hasn't such a core
    EXPECT_EQ(bits, others) << one << " and " << other;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "OpenBLAS has no two such cores here";
}

}  // namespace
}  // namespace tsprun::detail::test::gemm_cores_test
