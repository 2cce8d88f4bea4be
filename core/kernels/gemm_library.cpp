// Loads OpenBLAS with dlopen. The variables that it reads (threads, core type) are set only while it loads.
#include "core/kernels/gemm_library.h"

#include "core/kernels/level.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/names.h"
#include "transport/number.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <limits>
#include <stdexcept>

namespace tsprun::detail::kernels {

namespace {

constexpr std::array<std::string_view, 2> kNames = {"tsprun", "openblas"};
constexpr const char* kCoreVariable = "OPENBLAS_CORETYPE";
constexpr std::string_view kInstead = "install Debian's package libopenblas0-pthread, or choose --gemm tsprun";

/// Library given to set_gemm_library(); −1: none.
std::atomic<int>& chosen() {
  static std::atomic<int> library{-1};
  return library;
}

/// Gives an environment variable a value for as long as it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Returns OpenBLAS' name of the processors whose kernels it shall use: what the user's variable says, else that of the level;
/// empty: it looks at the processor.
std::string core_type() {
  if (const char* const asked = std::getenv(kCoreVariable)) return asked;
#ifdef __x86_64__
  return level() >= Level::avx512 ? "SkylakeX" : level() == Level::avx2 ? "Haswell" : "Prescott";
#else
  return {};
#endif
}

/// The loaded library and its functions. It stays loaded for as long as the process lives.
struct OpenBlas {
  OpenBlas() {
    {
      std::optional<ScopedVariable> core;
      if (const std::string type = core_type(); !type.empty()) core.emplace(kCoreVariable, type);
      const ScopedVariable threads("OPENBLAS_NUM_THREADS", "1");  // with more it would start a pool of threads
      loaded = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    }
    find(sgemm, "cblas_sgemm");
    find(dgemm, "cblas_dgemm");
    decltype(&openblas_get_config) config = nullptr;
    decltype(&openblas_get_corename) core = nullptr;
    decltype(&openblas_get_parallel) parallel = nullptr;
    decltype(&openblas_set_num_threads) set_threads = nullptr;
    find(config, "openblas_get_config");
    find(core, "openblas_get_corename");
    find(parallel, "openblas_get_parallel");
    find(set_threads, "openblas_set_num_threads");
    // Its buffers have locks only where it is built for POSIX threads.
    if (parallel() == OPENBLAS_OPENMP)
      throw Error(Cause::refused,
                  fmt::format("this OpenBLAS is built for OpenMP, and other threads can't call it: {}", kInstead));
    set_threads(1);
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY SkylakeX MAX_THREADS=128"
    const std::string_view words = config();
    const auto word_after = [&](std::string_view before) {
      const std::size_t at = words.find(before);
      if (at == std::string_view::npos) return std::string_view();
      const std::string_view rest = words.substr(at + before.size());
      return rest.substr(0, rest.find(' '));
    };
    description = fmt::format("openblas {} ({})", word_after("OpenBLAS "), core());
    most_threads = number_from<std::size_t>(word_after("MAX_THREADS=")).value_or(1);
  }

  template <class Function>
  void find(Function& function, const char* symbol) const {
    if (loaded != nullptr) function = reinterpret_cast<Function>(::dlsym(loaded, symbol));
    if (function != nullptr) return;
    const char* const reason = ::dlerror();
    throw Error(Cause::refused,
                fmt::format("can't load OpenBLAS: {}; {}", reason == nullptr ? "no reason given" : reason, kInstead));
  }

  void* loaded = nullptr;
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  std::string description;
  std::size_t most_threads = 1;
};

const OpenBlas& openblas() {
  static const OpenBlas library;
  return library;
}

blasint checked(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<blasint>::max()))
    throw std::invalid_argument(fmt::format("gemm: a size or row step of {} is more than OpenBLAS can count", value));
  return static_cast<blasint>(value);
}

template <class T, class Gemm>
void multiply_by(Gemm gemm, const OpenBlasProduct<T>& p) {
  // A row step below the row's length can only belong to a matrix of one row, where the step is never used.
  const std::size_t a_step = std::max(p.a_step, p.a_transposed ? p.m : p.k);
  const std::size_t b_step = std::max(p.b_step, p.b_transposed ? p.k : p.n);
  gemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.b_transposed ? CblasTrans : CblasNoTrans, checked(p.m),
       checked(p.n), checked(p.k), T{1}, p.a, checked(a_step), p.b, checked(b_step), p.add ? T{1} : T{0}, p.c,
       checked(std::max(p.c_step, p.n)));
}

}  // namespace

std::string_view name(GemmLibrary library) { return name_in(kNames, library); }

std::optional<GemmLibrary> gemm_library_from_name(std::string_view text) {
  return text == "auto" ? kUsualGemmLibrary : value_in<GemmLibrary>(kNames, text);
}

GemmLibrary gemm_library_from(const Environment& environment) {
  const std::string_view text = environment.gemm();
  if (const std::optional<GemmLibrary> library = gemm_library_from_name(text)) return *library;
  throw Error(Cause::refused, fmt::format("TSP_GEMM={}: auto, tsprun and openblas work", text));
}

void set_gemm_library(GemmLibrary library) { chosen().store(static_cast<int>(library)); }

GemmLibrary gemm_library() {
  const int value = chosen().load(std::memory_order_relaxed);
  if (value >= 0) return static_cast<GemmLibrary>(value);
  static const GemmLibrary usual = gemm_library_from(Environment());
  return usual;
}

std::string load_gemm_library(std::size_t threads) {
  if (gemm_library() == GemmLibrary::tsprun) return std::string(name(GemmLibrary::tsprun));
  if (threads > openblas().most_threads) {
    throw Error(Cause::refused, fmt::format("{} threads a rank: this OpenBLAS serves {}; try --threads {}, or --gemm tsprun",
                                            threads, openblas().most_threads, openblas().most_threads));
  }
  return openblas().description;
}

void multiply(const OpenBlasProduct<float>& product) { multiply_by(openblas().sgemm, product); }
void multiply(const OpenBlasProduct<double>& product) { multiply_by(openblas().dgemm, product); }

}  // namespace tsprun::detail::kernels
