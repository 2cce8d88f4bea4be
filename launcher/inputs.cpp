#include "launcher/inputs.h"

#include "core/kernels/blas.h"
#include "launcher/model/session.h"
#include "layers/io/digest.h"
#include "layers/io/file.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace tsprun::launcher {

namespace {

constexpr int kMostReaders = 16;
constexpr auto kTick = std::chrono::milliseconds(50);
/// Longest time for a child process to answer; it may have to load a library from a slow disk.
constexpr std::uint64_t kChild_ns = 30'000'000'000;
constexpr int kPoll_ms = 500;

/// A file's size, and the digests of its blocks that are known.
struct Reading {
  std::uint64_t bytes = 0;
  std::vector<Digest> blocks;
};

/// Reads files with several threads, a block at a time, in the order of the files.
class Readers {
 public:
  explicit Readers(const std::vector<InputFile>& files) : files_(files) {
    for (const InputFile& each : files) {
      Reading reading;
      reading.bytes = file::size(file::open_to_read(each.path), each.path);
      reading.blocks.resize(digest_blocks(reading.bytes));
      for (std::size_t block = 0; block < reading.blocks.size(); ++block) work_.emplace_back(readings_.size(), block);
      readings_.push_back(std::move(reading));
    }
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;
  ~Readers() {
    given_up_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  /// Returns the digests of all files, in their order.
  std::vector<Digest> read(const std::function<void()>& tick) {
    const std::size_t threads =
        std::min<std::size_t>(work_.size(), static_cast<std::size_t>(std::clamp(machine::usable_cores(), 1, kMostReaders)));
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    std::unique_lock lock(mutex_);
    while (ended_ < threads) {
      if (changed_.wait_for(lock, kTick) != std::cv_status::timeout) continue;
      lock.unlock();
      tick();
      lock.lock();
    }
    if (trouble_) std::rethrow_exception(trouble_);
    std::vector<Digest> digests;
    for (const Reading& reading : readings_) digests.push_back(digest_of_blocks(reading.blocks));
    return digests;
  }

 private:
  void work() {
    try {
      while (!given_up_) {
        const std::size_t next = next_++;
        if (next >= work_.size()) break;
        const auto [index, block] = work_[next];
        Reading& reading = readings_[index];
        const std::filesystem::path& path = files_[index].path;
        reading.blocks[block] = digest_block(file::open_to_read(path), path, reading.bytes, block, [] {});
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!trouble_) trouble_ = std::current_exception();
      given_up_ = true;
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }

  const std::vector<InputFile>& files_;
  std::vector<Reading> readings_;
  std::vector<std::pair<std::size_t, std::size_t>> work_;  // file and block
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> given_up_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ended_ = 0;
  std::exception_ptr trouble_;
  std::vector<std::thread> threads_;
};

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

Agreement machine_facts(bool kernels) {
  const std::filesystem::path self = "/proc/self/exe";
  const posix::UniqueFd program = file::open_to_read(self);
  Agreement facts;
  facts["build"] =
      fmt::format("{} (program {})", TSP_VERSION, short_digest(digest_file(program, self, file::size(program, self))));
  if (!kernels) return facts;
  facts["kernels"] = std::string(kernels::name(kernels_of_this_process()));
  facts["OpenBLAS"] = from_child("a process that loads OpenBLAS to see which it is", [] {
    kernels::set_level(kernels_of_this_process());
    return fmt::format("{} for {}", kernels::blas::version(), kernels::blas::core_name());
  });
  return facts;
}

Agreement contents(const std::vector<InputFile>& files, const std::function<void()>& tick) {
  Agreement found;
  if (files.empty()) return found;
  const std::vector<Digest> digests = Readers(files).read(tick);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const InputFile& each = files[i];
    std::string& value = found[each.name.empty() ? each.option : fmt::format("{}'s {}", each.option, each.name)];
    value += fmt::format("{}(content {})", value.empty() ? "" : "\n", short_digest(digests[i]));
  }
  return found;
}

}  // namespace tsprun::launcher
