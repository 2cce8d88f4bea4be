// Loads OpenBLAS in a child, which says by a pipe how that went.
#include "launcher/gemm_trial.h"

#include "core/kernels/gemm_library.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Longest time for the child's answer; the library may come from a slow disk.
constexpr std::uint64_t kAnswer_ns = 30'000'000'000;
/// First characters of an answer.
constexpr char kWorks = '+';
constexpr char kFails = '-';

/// Loads the library and multiplies matrices that are large enough for its buffers. Returns the answer; on every failure that can
/// be caught it says what failed.
std::string answer(kernels::Level level) {
  constexpr std::size_t n = 192;
  try {
    kernels::set_level(level);
    const std::string which = kernels::load_gemm_library();
    const std::vector<float> ones(n * n, 1);
    std::vector<float> c(n * n);
    kernels::multiply(kernels::OpenBlasProduct<float>{
        .m = n, .n = n, .k = n, .a = ones.data(), .a_step = n, .b = ones.data(), .b_step = n, .c = c.data(), .c_step = n});
    if (std::ranges::all_of(c, [](float sum) { return sum == static_cast<float>(n); })) return kWorks + which;
    return fmt::format("{}{} computes a wrong product; choose --gemm tsprun", kFails, which);
  } catch (const std::exception& error) {
    return kFails + std::string(error.what());
  }
}

/// Reads until the other end is closed or `pid`, which is killed then, has taken too long: returns what such a process would say.
std::string read_answer(int from, pid_t pid) {
  std::string text;
  char piece[512];
  const std::uint64_t deadline = posix::now_ns() + kAnswer_ns;
  for (;;) {
    pollfd watched{from, POLLIN, 0};
    constexpr int kLook_ms = 500;
    if (::poll(&watched, 1, kLook_ms) <= 0) {
      if (posix::now_ns() < deadline) continue;
      ::kill(pid, SIGKILL);
      return fmt::format(
          "{}OpenBLAS gave no answer within {} s (are `ulimit -v` and `ulimit -d` unlimited?); choose --gemm tsprun", kFails,
          kAnswer_ns / 1'000'000'000);
    }
    const ssize_t got = ::read(from, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string try_gemm_library(kernels::Level level) {
  if (kernels::gemm_library() == kernels::GemmLibrary::tsprun) return kernels::load_gemm_library();
  constexpr std::string_view kWhat = "a process that tries OpenBLAS";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error(Cause::refused, std::string(kWhat), errno);
  const posix::UniqueFd reading(ends[0]);
  posix::UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw system_error(Cause::refused, std::string(kWhat), errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(posix::write_all(writing.get(), answer(level)));
  }
  writing.reset();
  const std::string text = read_answer(reading.get(), child);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.starts_with(kWorks)) return text.substr(1);
  if (text.starts_with(kFails)) throw Error(Cause::refused, text.substr(1));
  throw Error(
      Cause::refused,
      fmt::format("OpenBLAS doesn't work here: {} ended by {} {} (are `ulimit -v` and `ulimit -d` unlimited?); choose "
                  "--gemm tsprun",
                  kWhat, WIFSIGNALED(status) ? "signal" : "code", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
}

}  // namespace tsprun::detail::launcher
