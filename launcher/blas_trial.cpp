// Forks a process that multiplies under a limit of processor time, and reads what it says.
#include "launcher/blas_trial.h"

#include "core/kernels/blas.h"
#include "core/kernels/level.h"
#include "launcher/processes.h"
#include "transport/machine.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Side of the matrices: just too large for the kernels that OpenBLAS has for small products, which need no work memory.
constexpr std::size_t kSide = 128;
/// Limit of processor time: a hundred times what the trial takes. A process that spins uses it up.
constexpr rlim_t kProcessorSeconds = 2;
/// Longest wait for the trial. After that time, on a machine without a free core, nothing is known, and the trial counts as
/// passed.
constexpr std::uint64_t kPatience_ns = 30'000'000'000;
constexpr char kGood = '+';
constexpr char kBad = '-';

void multiply_once() {
  std::vector<float> a(kSide * kSide, 1.0F);
  std::vector<float> c(kSide * kSide);
  kernels::blas::multiply(kernels::blas::Product<float>{.m = kSide,
                                                        .n = kSide,
                                                        .k = kSide,
                                                        .a = a.data(),
                                                        .a_step = kSide,
                                                        .b = a.data(),
                                                        .b_step = kSide,
                                                        .c = c.data(),
                                                        .c_step = kSide});
}

[[noreturn]] void multiply_and_tell(int descriptor, int threads, kernels::Level level, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(1);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const rlimit seconds{kProcessorSeconds, kProcessorSeconds + 1};
  ::setrlimit(RLIMIT_CPU, &seconds);
  close_descriptors_except({STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, descriptor});
  reset_signals();
  std::string word;
  try {
    kernels::set_level(level);
    word = kGood + kernels::blas::core_name() + '\n' + kernels::blas::description();
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(multiply_once);
    multiply_once();
    for (std::thread& other : others) other.join();
  } catch (const std::exception& error) {
    word = std::string(1, kBad) + error.what();
  }
  [[maybe_unused]] const ssize_t written = ::write(descriptor, word.data(), word.size());
  ::_exit(0);
}

/// Returns all that the trial's process writes until it ends, or until the longest wait is over.
std::string hear(const posix::UniqueFd& pipe) {
  std::string word;
  std::array<char, 4096> buffer;
  const std::uint64_t until = posix::now_ns() + kPatience_ns;
  for (std::uint64_t now = posix::now_ns(); now < until; now = posix::now_ns()) {
    pollfd event{pipe.get(), POLLIN, 0};
    if (::poll(&event, 1, static_cast<int>((until - now) / 1'000'000) + 1) <= 0) continue;
    const ssize_t got = ::read(pipe.get(), buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) word.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return word;
}

std::string limits_in_the_way() {
  std::string text;
  const auto add = [&](const std::string& limit) { text += (text.empty() ? "" : ", ") + limit; };
  const auto soft = [&](auto resource, const char* option) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      add(fmt::format("`ulimit {}` is {} KiB: try `ulimit {} unlimited`", option, limit.rlim_cur / 1024, option));
  };
  soft(RLIMIT_DATA, "-d");
  soft(RLIMIT_AS, "-v");
  int overcommit = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit == 2) add("vm.overcommit_memory is 2, so that memory must be there before it is used: try 0");
  if (text.empty()) add(fmt::format("{} MiB of memory are available", machine::available_memory() >> 20));
  return text;
}

}  // namespace

Trial try_blas(int threads, kernels::Level level) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {false, fmt::format("a pipe for its trial: {}", std::strerror(errno))};
  const posix::UniqueFd read(ends[0]);
  posix::UniqueFd write(ends[1]);
  const pid_t launcher = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return {false, fmt::format("fork for its trial: {}", std::strerror(errno))};
  if (child == 0) multiply_and_tell(write.get(), threads, level, launcher);
  write.reset();
  const std::string word = hear(read);
  ::kill(child, SIGKILL);  // has no effect on a process that has ended
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!word.empty() && word.front() == kGood) {
    const std::size_t end = word.find('\n');
    return {true, fmt::format("{} kernels", word.substr(1, end - 1)), word.substr(end + 1)};
  }
  if (!word.empty()) return {false, word.substr(1)};
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : SIGXCPU;
  if (signal == SIGKILL) return {true, "not known: no core was free to try it"};
  return {false, fmt::format("it can't have its work memory for {} thread{} ({}); {}", threads, threads == 1 ? "" : "s",
                             signal == SIGXCPU ? "it asks for ever" : signal_name(signal), limits_in_the_way())};
}

std::string blas_trouble(int threads, kernels::Level level) {
  const Trial trial = try_blas(threads, level);
  return trial.possible ? std::string() : fmt::format("OpenBLAS doesn't work here: {}", trial.why);
}

}  // namespace tsprun::detail::launcher
