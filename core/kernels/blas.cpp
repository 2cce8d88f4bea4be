// Loads OpenBLAS with dlopen. The environment variables that it reads (threads, core type) are set only while it loads.
#include "core/kernels/blas.h"

#include "transport/shared_library.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace tsprun::detail::kernels::blas {

namespace {

/// Sets an environment variable, and restores its old value when destroyed.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) old_ = old;
    if (value != nullptr) setenv(name, value, 1);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() {
    if (old_.has_value()) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::atomic<bool>& loaded_flag() {
  static std::atomic<bool> flag{false};
  return flag;
}

/// The loaded library and its functions. It stays loaded as long as the process lives, since a rank's last kernel may run in any
/// destructor.
struct Library {
  Library() {
    // OpenBLAS uses one thread, and the kernels of the level rather than those of the detected machine, so that equal levels give
    // equal bits. Below AVX2 it chooses by the machine.
    const Level at = level();
    const char* core = at >= Level::avx512 ? "SkylakeX" : at == Level::avx2 ? "Haswell" : nullptr;
    const ScopedVariable threads("OPENBLAS_NUM_THREADS", "1");
    const ScopedVariable core_type("OPENBLAS_CORETYPE", core);
    const SharedLibrary loaded("libopenblas.so.0", "OpenBLAS", "libopenblas0");
    loaded.find(sgemm, "cblas_sgemm");
    loaded.find(dgemm, "cblas_dgemm");
    loaded.find(corename, "openblas_get_corename");
    loaded.find(config, "openblas_get_config");
    loaded_flag().store(true);
  }

  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  decltype(&openblas_get_corename) corename = nullptr;
  decltype(&openblas_get_config) config = nullptr;
};

const Library& library() {
  static const Library instance;
  return instance;
}

blasint checked(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<blasint>::max())) {
    throw std::invalid_argument("gemm: a size or row step of " + std::to_string(value) + " is more than OpenBLAS can count");
  }
  return static_cast<blasint>(value);
}

template <class T, class Gemm>
void multiply_with(Gemm gemm, const Product<T>& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (p.add) return;
    for (std::size_t row = 0; row < p.m; ++row) std::fill_n(p.c + row * p.c_step, p.n, T{0});
    return;
  }
  // A row step below the row's length can only belong to a matrix of one row, where the step is never used.
  const std::size_t a_step = std::max(p.a_step, p.a_transposed ? p.m : p.k);
  const std::size_t b_step = std::max(p.b_step, p.b_transposed ? p.k : p.n);
  gemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.b_transposed ? CblasTrans : CblasNoTrans, checked(p.m),
       checked(p.n), checked(p.k), T{1}, p.a, checked(a_step), p.b, checked(b_step), p.add ? T{1} : T{0}, p.c,
       checked(std::max(p.c_step, p.n)));
}

}  // namespace

void multiply(const Product<float>& product) { multiply_with(library().sgemm, product); }
void multiply(const Product<double>& product) { multiply_with(library().dgemm, product); }
std::string core_name() { return library().corename(); }

std::string version() {
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
  std::istringstream words(library().config());
  std::string name;
  std::string number;
  words >> name >> number;
  return number;
}

std::string description() { return version() + " for " + core_name(); }

bool loaded() { return loaded_flag().load(); }

}  // namespace tsprun::detail::kernels::blas
