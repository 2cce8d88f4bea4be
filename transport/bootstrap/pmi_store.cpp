// Asks the process manager line by line.
#include "transport/bootstrap/pmi_store.h"

#include "transport/cause.h"
#include "transport/hexadecimal.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tsprun::detail::bootstrap {

namespace {

constexpr std::size_t kLongestLine = 64 << 10;
constexpr int kPoll_ms = 100;

/// Returns the value of a word "name=value" of a line; empty if there is none.
std::string_view word(std::string_view line, std::string_view name) {
  while (!line.empty()) {
    const std::string_view each = take_word(line, ' ');
    if (each.starts_with(name) && each.substr(name.size()).starts_with('=')) return each.substr(name.size() + 1);
  }
  return {};
}

}  // namespace

PmiStore::PmiStore(int descriptor, std::uint64_t timeout_ns) : descriptor_(descriptor), timeout_ns_(timeout_ns) {
  if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
    throw system_error(Cause::refused, fmt::format("PMI_FD={}", descriptor), errno);
  ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  most_bytes_ = number_from<std::size_t>(word(ask("cmd=get_maxes", "maxes"), "vallen_max")).value_or(0) / 2;
  name_ = word(ask("cmd=get_my_kvsname", "my_kvsname"), "kvsname");
}

PmiStore::~PmiStore() {
  try {
    ask("cmd=finalize", "finalize_ack");
  } catch (const Error&) {
    // The manager has gone, and ends this process in a moment.
  }
}

void PmiStore::set(const std::string& key, std::span<const std::byte> value) {
  if (value.size() >= most_bytes_) {
    throw Error(Cause::refused,
                fmt::format("the process manager stores {} bytes at most, but {} takes {}", most_bytes_, key, value.size()));
  }
  ask(fmt::format("cmd=put kvsname={} key={} value={}", name_, quoted(key), hexadecimal(value)), "put_result");
}

std::optional<std::vector<std::byte>> PmiStore::get(const std::string& key, std::chrono::milliseconds /*at_most*/) {
  const std::string answer = ask(fmt::format("cmd=get kvsname={} key={}", name_, quoted(key)), "get_result");
  return word(answer, "rc") == "0" ? from_hexadecimal(word(answer, "value")) : std::nullopt;
}

void PmiStore::fence() { ask("cmd=barrier_in", "barrier_out"); }

/// MPICH's own keys begin with other words.
std::string PmiStore::quoted(const std::string& key) const { return "tsprun-" + key; }

/// Sends a line and returns the answer, which must be of this kind and, but for a get, say that it worked.
std::string PmiStore::ask(const std::string& line, std::string_view answer) {
  const std::string out = line + "\n";
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  for (std::size_t sent = 0; sent < out.size();) {
    const ssize_t now = ::send(descriptor_, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0 && errno == EAGAIN) {
      if (posix::now_ns() >= deadline) throw_silent();
      pollfd watched{descriptor_, POLLOUT, 0};
      ::poll(&watched, 1, kPoll_ms);
      continue;
    }
    if (now <= 0)
      throw system_error(Cause::refused, fmt::format("PMI_FD={}: writing to the process manager", descriptor_), errno);
    sent += static_cast<std::size_t>(now);
  }
  std::string in = read_line();
  const std::string_view rc = word(in, "rc");
  if (word(in, "cmd") != answer || (answer != "get_result" && !rc.empty() && rc != "0")) {
    throw Error(Cause::refused,
                fmt::format("PMI_FD={}: the process manager answered \"{}\" with \"{}\": `mpirun.mpich` and `srun "
                            "--mpi=pmi2` speak PMI-1",
                            descriptor_, line, in));
  }
  return in;
}

void PmiStore::throw_silent() const {
  throw Error(
      Cause::stalled,
      fmt::format("PMI_FD={}: the process manager didn't answer within {:g} s (TSP_TIMEOUT): have all ranks begun to join?",
                  descriptor_, static_cast<double>(timeout_ns_) * 1e-9));
}

std::string PmiStore::read_line() {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  for (std::size_t end = input_.find('\n');; end = input_.find('\n')) {
    if (end != std::string::npos) {
      std::string line = input_.substr(0, end);
      input_.erase(0, end + 1);
      return line;
    }
    if (input_.size() > kLongestLine)
      throw Error(Cause::refused, fmt::format("PMI_FD={}: a line without end: is it a process manager's?", descriptor_));
    if (posix::now_ns() >= deadline) throw_silent();
    pollfd watched{descriptor_, POLLIN, 0};
    if (::poll(&watched, 1, kPoll_ms) <= 0) continue;
    char bytes[4096];
    const ssize_t got = ::read(descriptor_, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error(Cause::refused, fmt::format("PMI_FD={}: the process manager has gone", descriptor_));
    input_.append(bytes, static_cast<std::size_t>(got));
  }
}

}  // namespace tsprun::detail::bootstrap
