// gemm() by OpenBLAS: right, the same bits whatever the threads, without threads of its own, within the memory that is counted.

#include "core/kernels/gemm_library.h"
#include "core/kernels/gemm.h"
#include "core/kernels/level.h"
#include "tests/core/kernel_support.h"
#include "transport/cause.h"
#include "transport/environment.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <string>
#include <thread>

namespace tsprun::detail::test::gemm_library_test {
namespace {

using kernels::GemmLibrary;

Environment variable(const char* value) {
  return Environment([value](const char* name) { return std::string(name) == "TSP_GEMM" ? value : nullptr; });
}

TEST(GemmLibrary, IsThatOfTheVariableOrTheUsualOne) {
  EXPECT_EQ(kernels::gemm_library_from(variable(nullptr)), kernels::kUsualGemmLibrary);
  EXPECT_EQ(kernels::gemm_library_from(variable("auto")), kernels::kUsualGemmLibrary);
  EXPECT_EQ(kernels::gemm_library_from(variable("tsprun")), GemmLibrary::tsprun);
  EXPECT_EQ(kernels::gemm_library_from(variable("openblas")), GemmLibrary::openblas);
  try {
    kernels::gemm_library_from(variable("mkl"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_EQ(std::string(error.what()), "TSP_GEMM=mkl: auto, tsprun and openblas work");
  }
}

TEST(GemmLibrary, IsOurOwnWithAWordWhereTheUsualOneCantBeHad) {
  int tries = 0;
  const auto loads = [&] { ++tries; };
  const auto fails = [] { throw Error(Cause::refused, "no OpenBLAS is here; install it"); };
  testing::internal::CaptureStderr();
  EXPECT_EQ(kernels::automatic_gemm_library(fails, GemmLibrary::tsprun), GemmLibrary::tsprun);
  EXPECT_EQ(kernels::automatic_gemm_library(loads, GemmLibrary::openblas), GemmLibrary::openblas);
  EXPECT_EQ(tries, 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(kernels::automatic_gemm_library(fails, GemmLibrary::openblas), GemmLibrary::tsprun);
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* part : {"--gemm auto", "no OpenBLAS is here; install it", "tsprun's own kernels"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

/// Value of a line of /proc/self/status, "Threads:" or, in KiB, "RssAnon:".
std::size_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::size_t value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

/// Chooses OpenBLAS for one test.
class OpenBlas : public testing::Test {
 protected:
  void SetUp() override { kernels::set_gemm_library(GemmLibrary::openblas); }
  void TearDown() override { kernels::set_gemm_library(before_); }

 private:
  GemmLibrary before_ = kernels::gemm_library();
};

struct Shape {
  std::size_t m, n, k;
  bool a_transposed, b_transposed;
};

/// A product of normal numbers, and what it is.
struct Product {
  Array a, b, c;
  ConstTensor a_view, b_view;

  Product(DType dtype, const Shape& of, unsigned seed = 1)
      : a(Array::normal(dtype, of.a_transposed ? std::vector{of.k, of.m} : std::vector{of.m, of.k}, seed)),
        b(Array::normal(dtype, of.b_transposed ? std::vector{of.n, of.k} : std::vector{of.k, of.n}, seed + 1)),
        c(Array::normal(dtype, {of.m, of.n}, seed + 2)),
        a_view(of.a_transposed ? std::as_const(a).view().transposed(0, 1) : std::as_const(a).view()),
        b_view(of.b_transposed ? std::as_const(b).view().transposed(0, 1) : std::as_const(b).view()) {}

  void multiply(std::size_t threads, kernels::Write write = kernels::Write::replace) {
    Bench bench(threads, kernels::gemm_workspace(c.view(), a_view, b_view, threads));
    kernels::gemm(bench.on(), c.view(), a_view, b_view, write);
  }
  std::vector<double> by_loops(bool add) const {
    const auto element = [](const Array& of, const ConstTensor& view, std::size_t i, std::size_t j) {
      return of[i * view.stride(0) + j * view.stride(1)];
    };
    std::vector<double> result = add ? c.values() : std::vector<double>(c.count());
    for (std::size_t i = 0; i < a_view.size(0); ++i) {
      for (std::size_t l = 0; l < a_view.size(1); ++l) {
        const double left = element(a, a_view, i, l);
        for (std::size_t j = 0; j < b_view.size(1); ++j) result[i * b_view.size(1) + j] += left * element(b, b_view, l, j);
      }
    }
    return result;
  }
};

TEST_F(OpenBlas, EqualsTripleLoops) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [ta, tb] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      for (const Shape& shape : {Shape{5, 1, 3, ta, tb}, {61, 131, 270, ta, tb}, {200, 190, 520, ta, tb}}) {
        for (const bool add : {false, true}) {
          Product product(dtype, shape);
          const std::vector<double> expected = product.by_loops(add);
          product.multiply(2, add ? kernels::Write::add : kernels::Write::replace);
          EXPECT_LE(distance(product.c, expected), tolerance(dtype)) << shape.m << "x" << shape.n << " " << ta << tb << add;
        }
      }
    }
  }
}

TEST_F(OpenBlas, HasTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    // The first is small enough for kernels that some versions have for small matrices alone.
    for (const Shape& shape : {Shape{70, 90, 300, false, true}, {517, 391, 470, false, false}}) {
      Product one(dtype, shape);
      one.multiply(1);
      for (const std::size_t threads : {2U, 3U, 5U}) {
        Product many(dtype, shape);
        many.multiply(threads);
        EXPECT_TRUE(one.c == many.c) << name(dtype) << " with " << threads << " threads";
      }
    }
  }
}

TEST_F(OpenBlas, ServesThreadsAtTheSameTime) {
  constexpr unsigned kThreads = 4;
  const Shape shape{130, 140, 150, false, false};
  std::vector<Product> alone;
  std::vector<Product> together;
  alone.reserve(kThreads);
  together.reserve(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) {
    alone.emplace_back(DType::f32, shape, 10 * i);
    alone.back().multiply(1);
    together.emplace_back(DType::f32, shape, 10 * i);
  }
  std::vector<std::thread> threads;
  for (Product& product : together) {
    threads.emplace_back([&product] {
      for (int repeat = 0; repeat < 50; ++repeat) product.multiply(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned i = 0; i < kThreads; ++i) EXPECT_TRUE(together[i].c == alone[i].c) << i;
}

// OpenBLAS of Debian 12 has 128 buffers. It warns when calls need more, and the process ends by a signal when they need 640.
TEST_F(OpenBlas, NeverNeedsMoreBuffersThanThereAre) {
  constexpr std::size_t kThreads = 160;
  constexpr std::size_t n = 64;
  constexpr std::size_t k = 100'000;  // so long that all calls are under way at some time, if they may
  kernels::load_gemm_library();
  const std::vector<float> ones(n * k, 1);
  std::vector<std::vector<float>> results(kThreads, std::vector<float>(n * n));
  std::latch start(kThreads);
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (std::vector<float>& c : results) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      kernels::multiply(kernels::OpenBlasProduct<float>{.m = n,
                                                        .n = n,
                                                        .k = k,
                                                        .a = ones.data(),
                                                        .a_step = k,
                                                        .b = ones.data(),
                                                        .b_step = k,
                                                        .b_transposed = true,
                                                        .c = c.data(),
                                                        .c_step = n});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  for (const std::vector<float>& c : results) EXPECT_EQ(c, std::vector<float>(n * n, k));
}

TEST_F(OpenBlas, StartsNoThreadsAndSaysWhichItIs) {
  const std::size_t before = status("Threads:");
  ::setenv("OPENBLAS_NUM_THREADS", "3", 1);  // which another program may want
  const std::string which = kernels::load_gemm_library();
  EXPECT_EQ(std::string(std::getenv("OPENBLAS_NUM_THREADS")), "3");
  ::unsetenv("OPENBLAS_NUM_THREADS");
  Product(DType::f32, {600, 600, 600, false, false}).multiply(1);
  EXPECT_EQ(status("Threads:"), before);
  EXPECT_EQ(which.find("openblas 0."), 0U) << which;
#ifdef __x86_64__
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || kernels::level() < kernels::Level::avx2) return;
  EXPECT_NE(which.find(kernels::level() == kernels::Level::avx2 ? "(Haswell)" : "(SkylakeX)"), std::string::npos) << which;
#endif
}

#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)  // which keep books in memory of their own
TEST_F(OpenBlas, TouchesNoMoreMemoryThanItsWorkspaceCounts) {
  kernels::load_gemm_library();
  for (const DType dtype : {DType::f32, DType::f64}) {
    Product(dtype, {64, 64, 64, false, false}).multiply(1);
    Product product(dtype, {1500, 1500, 600, false, false});
    const std::size_t counted = kernels::gemm_workspace(product.c.view(), product.a_view, product.b_view, 1);
    std::vector<std::byte> workspace(counted);
    kernels::Compute on;
    on.workspace = workspace;
    const std::size_t before = status("RssAnon:");
    kernels::gemm(on, product.c.view(), product.a_view, product.b_view);
    EXPECT_LE((status("RssAnon:") - before) * 1024, counted + 65536) << name(dtype);
  }
}
#endif

}  // namespace
}  // namespace tsprun::detail::test::gemm_library_test
