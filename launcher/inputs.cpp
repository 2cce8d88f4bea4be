// Asks child processes for kernel level and OpenBLAS, and hashes files.
#include "launcher/inputs.h"

#include "core/kernels/blas.h"
#include "layers/io/digest.h"
#include "layers/io/digest_files.h"
#include "layers/io/file.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

/// Longest time for a child process to answer; it may have to load a library from a slow disk.
constexpr std::uint64_t kChild_ns = 30'000'000'000;
constexpr int kPoll_ms = 500;

std::string short_digest(const Digest& digest) { return hexadecimal(digest).substr(0, 12); }

/// Returns what a child process says. The child runs `say` and ends, and so has no effect on this process.
template <class Say>
std::string from_child(const std::string& what, Say say) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error(Cause::refused, what, errno);
  posix::UniqueFd reading(ends[0]);
  posix::UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw system_error(Cause::refused, what, errno);
  if (child == 0) {
    std::string text;
    try {
      text = say();
    } catch (const std::exception& error) {
      text = fmt::format("!{}", error.what());
    }
    const ssize_t written = ::write(writing.get(), text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  writing.reset();
  std::string text;
  char piece[512];
  const std::uint64_t deadline = posix::now_ns() + kChild_ns;
  for (;;) {
    pollfd watched{reading.get(), POLLIN, 0};
    if (::poll(&watched, 1, kPoll_ms) <= 0) {
      if (posix::now_ns() < deadline) continue;
      ::kill(child, SIGKILL);
    }
    const ssize_t got = ::read(reading.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece, static_cast<std::size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.starts_with('!')) throw Error(Cause::refused, text.substr(1));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(Cause::refused, WIFSIGNALED(status) ? fmt::format("{}: it ended by signal {}", what, WTERMSIG(status))
                                                    : fmt::format("{}: it ended with code {}", what, WEXITSTATUS(status)));
  }
  return text;
}

}  // namespace

Agreement machine_facts(std::optional<kernels::Level> level) {
  const std::filesystem::path self = "/proc/self/exe";
  const posix::UniqueFd program = file::open_to_read(self);
  Agreement facts;
  facts["build"] =
      fmt::format("{} (program {})", TSP_VERSION, short_digest(digest_file(program, self, file::size(program, self))));
  if (!level) return facts;
  facts["kernels"] = std::string(kernels::name(*level));
  facts["OpenBLAS"] = from_child("a process that loads OpenBLAS to see which it is", [level] {
    kernels::set_level(*level);
    return kernels::blas::description();
  });
  return facts;
}

Agreement contents(const std::vector<InputFile>& files, const std::function<void()>& tick) {
  Agreement found;
  if (files.empty()) return found;
  std::vector<std::filesystem::path> paths;
  for (const InputFile& each : files) paths.push_back(each.path);
  const std::vector<Digest> digests = digest_files(paths, tick);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const InputFile& each = files[i];
    std::string& value = found[each.name.empty() ? each.option : fmt::format("{}'s {}", each.option, each.name)];
    value += fmt::format("{}(content {})", value.empty() ? "" : "\n", short_digest(digests[i]));
  }
  return found;
}

}  // namespace tsprun::detail::launcher
