// Shares the blocks of all files among threads.
#include "layers/io/digest_files.h"

#include "layers/io/file.h"
#include "transport/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <system_error>
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

}  // namespace

std::vector<Digest> digest_files(const std::vector<fs::path>& paths, const std::function<void()>& tick) {
  std::vector<Reading> readings;
  std::vector<std::pair<std::size_t, std::size_t>> work;  // file and block
  for (const fs::path& path : paths) {
    const std::uint64_t bytes = file::size(file::open_to_read(path), path);
    readings.push_back({bytes, std::vector<Digest>(digest_blocks(bytes))});
    for (std::size_t block = 0; block < readings.back().blocks.size(); ++block) work.emplace_back(readings.size() - 1, block);
  }
  std::atomic<std::size_t> next{0};  // beyond the work: all is read, or somebody has given up
  const auto read = [&](const std::function<void()>& between) {
    try {
      for (std::size_t i = next++; i < work.size(); i = next++) {
        const fs::path& path = paths[work[i].first];
        Reading& reading = readings[work[i].first];
        reading.blocks[work[i].second] = digest_block(file::open_to_read(path), path, reading.bytes, work[i].second, between);
      }
    } catch (...) {
      next = work.size();
      throw;
    }
  };
  const std::size_t most =
      std::min<std::size_t>(work.size(), static_cast<std::size_t>(std::clamp(machine::usable_cores(), 1, kMostReaders)));
  std::vector<std::future<void>> readers;  // one that is destroyed waits for its thread
  try {
    while (readers.size() < most) readers.push_back(std::async(std::launch::async, read, [] {}));
  } catch (const std::system_error&) {
    // The system grants no more threads: those that there are read all, and without any this one does.
    if (readers.empty()) read(tick);
  }
  try {
    for (const std::future<void>& reader : readers) {
      while (reader.wait_for(kTick) == std::future_status::timeout) tick();
    }
  } catch (...) {
    next = work.size();
    throw;
  }
  for (std::future<void>& reader : readers) reader.get();
  std::vector<Digest> digests;
  for (const Reading& reading : readings) digests.push_back(digest_of_blocks(reading.blocks));
  return digests;
}

}  // namespace tsprun::detail
