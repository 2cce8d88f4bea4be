// Shares the blocks of all files among threads.
#include "layers/io/digest_files.h"

#include "layers/io/file.h"
#include "transport/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

constexpr int kMostReaders = 16;
constexpr auto kTick = std::chrono::milliseconds(50);

/// A file's size, and the digests of its blocks that are known.
struct Reading {
  std::uint64_t bytes = 0;
  std::vector<Digest> blocks;
};

/// Reads files with several threads, a block at a time, in the order of the files.
class Readers {
 public:
  explicit Readers(const std::vector<fs::path>& paths) : paths_(paths) {
    for (const fs::path& path : paths) {
      Reading reading;
      reading.bytes = file::size(file::open_to_read(path), path);
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
    try {
      for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(tick_never); });
    } catch (const std::system_error&) {
      // The system grants no more threads: those that there are read all, and without any this one does.
      if (threads_.empty()) work(tick);
    }
    std::unique_lock lock(mutex_);
    while (ended_ < threads_.size()) {
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
  static void tick_never() {}

  /// Reads blocks until there are none left. `tick` is called as digest_block() does.
  void work(const std::function<void()>& tick) {
    try {
      while (!given_up_) {
        const std::size_t next = next_++;
        if (next >= work_.size()) break;
        const auto [index, block] = work_[next];
        Reading& reading = readings_[index];
        const fs::path& path = paths_[index];
        reading.blocks[block] = digest_block(file::open_to_read(path), path, reading.bytes, block, tick);
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

  const std::vector<fs::path>& paths_;
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

}  // namespace

std::vector<Digest> digest_files(const std::vector<fs::path>& paths, const std::function<void()>& tick) {
  return Readers(paths).read(tick);
}

}  // namespace tsprun::detail
