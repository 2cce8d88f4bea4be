// Loads OpenBLAS with dlopen. The variables that it reads (threads, core type) are set only while it loads.
#include "core/kernels/gemm_library.h"

#include "core/kernels/level.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/log.h"
#include "transport/names.h"
#include "transport/number.h"

#include <fmt/format.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <dlfcn.h>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>

namespace tsprun::detail::kernels {

namespace {

constexpr std::array<std::string_view, 2> kNames = {"tsprun", "openblas"};
constexpr std::string_view kAutomatic = "auto";
constexpr const char* kCoreVariable = "OPENBLAS_CORETYPE";
constexpr std::string_view kInstead = "install Debian's package libopenblas0-pthread, or choose --gemm tsprun";

// What OpenBLAS' header cblas.h declares, so that a build needs no package of OpenBLAS.
constexpr int kRowMajor = 101;
constexpr int kAsStored = 111;
constexpr int kTransposed = 112;
constexpr int kPosixThreads = 1;
template <class T>
using Gemm = void(int order, int a_transposed, int b_transposed, int m, int n, int k, T alpha, const T* a, int a_step, const T* b,
                  int b_step, T beta, T* c, int c_step);
using Text = char*();
using Number = int();
using TakesNumber = void(int);

/// Library given to set_gemm_library(); −1: none.
std::atomic<int>& chosen() {
  static std::atomic<int> library{-1};
  return library;
}

/// Buffers of OpenBLAS' that calls hold, each one for as long as it lasts. OpenBLAS has two for each thread that it was built
/// for, and ends the process when it has no other; so calls beyond the number of those threads wait.
class Buffers {
 public:
  explicit Buffers(std::size_t count) : free_(count) {}
  void take() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this] { return free_ > 0; });
    --free_;
  }
  void give_back() {
    {
      const std::lock_guard lock(mutex_);
      ++free_;
    }
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  std::size_t free_;
};

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
    Text* config = nullptr;
    Text* core = nullptr;
    Number* parallel = nullptr;
    TakesNumber* set_threads = nullptr;
    find(config, "openblas_get_config");
    find(core, "openblas_get_corename");
    find(parallel, "openblas_get_parallel");
    find(set_threads, "openblas_set_num_threads");
    // Others have no locks for their buffers.
    if (parallel() != kPosixThreads)
      throw Error(Cause::refused, fmt::format("this OpenBLAS isn't built for POSIX threads, which call it here: {}", kInstead));
    set_threads(1);
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY SkylakeX MAX_THREADS=64"
    const std::string_view words = config();
    const auto word_after = [&](std::string_view before) {
      const std::size_t at = words.find(before);
      if (at == std::string_view::npos) return std::string_view();
      const std::string_view rest = words.substr(at + before.size());
      return rest.substr(0, rest.find(' '));
    };
    description = fmt::format("openblas {} ({})", word_after("OpenBLAS "), core());
    buffers.emplace(number_from<std::size_t>(word_after("MAX_THREADS=")).value_or(1));
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
  Gemm<float>* sgemm = nullptr;
  Gemm<double>* dgemm = nullptr;
  std::string description;
  std::optional<Buffers> buffers;
};

OpenBlas& openblas() {
  static OpenBlas library;
  return library;
}

int checked(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw std::invalid_argument(fmt::format("gemm: a size or row step of {} is more than OpenBLAS can count", value));
  return static_cast<int>(value);
}

template <class T>
void multiply_by(Gemm<T>* gemm, const OpenBlasProduct<T>& p) {
  // A row step below the row's length can only belong to a matrix of one row, where the step is never used.
  const std::size_t a_step = std::max(p.a_step, p.a_transposed ? p.m : p.k);
  const std::size_t b_step = std::max(p.b_step, p.b_transposed ? p.k : p.n);
  const int m = checked(p.m);
  const int n = checked(p.n);
  const int k = checked(p.k);
  const int steps[] = {checked(a_step), checked(b_step), checked(std::max(p.c_step, p.n))};
  Buffers& buffers = *openblas().buffers;
  buffers.take();
  gemm(kRowMajor, p.a_transposed ? kTransposed : kAsStored, p.b_transposed ? kTransposed : kAsStored, m, n, k, T{1}, p.a,
       steps[0], p.b, steps[1], p.add ? T{1} : T{0}, p.c, steps[2]);
  buffers.give_back();
}

}  // namespace

std::string_view name(GemmLibrary library) { return name_in(kNames, library); }

std::optional<GemmLibrary> gemm_library_from_name(std::string_view text) {
  return text == kAutomatic ? kUsualGemmLibrary : value_in<GemmLibrary>(kNames, text);
}

GemmLibrary gemm_library_from(const Environment& environment) {
  const std::string_view text = environment.gemm();
  if (const std::optional<GemmLibrary> library = gemm_library_from_name(text)) return *library;
  throw Error(Cause::refused, fmt::format("TSP_GEMM={}: auto, tsprun and openblas work", text));
}

GemmLibrary automatic_gemm_library(const std::function<void()>& try_openblas, GemmLibrary usual) {
  if (usual == GemmLibrary::tsprun) return usual;
  try {
    try_openblas();
    return usual;
  } catch (const Error& error) {
    logger().warn("--gemm auto: {}. Meanwhile tsprun's own kernels multiply, which are tuned for x86-64 alone", error.what());
    return GemmLibrary::tsprun;
  }
}

void set_gemm_library(GemmLibrary library) { chosen().store(static_cast<int>(library)); }

GemmLibrary gemm_library() {
  const int value = chosen().load(std::memory_order_relaxed);
  if (value >= 0) return static_cast<GemmLibrary>(value);
  static const GemmLibrary usual = [] {
    const Environment environment;
    const GemmLibrary library = gemm_library_from(environment);
    return environment.gemm() == kAutomatic ? automatic_gemm_library([] { openblas(); }) : library;
  }();
  return usual;
}

std::string load_gemm_library() {
  return gemm_library() == GemmLibrary::tsprun ? std::string(name(GemmLibrary::tsprun)) : openblas().description;
}

void multiply(const OpenBlasProduct<float>& product) { multiply_by(openblas().sgemm, product); }
void multiply(const OpenBlasProduct<double>& product) { multiply_by(openblas().dgemm, product); }

}  // namespace tsprun::detail::kernels
