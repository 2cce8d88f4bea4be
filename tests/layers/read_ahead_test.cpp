// Files that are read ahead: which of their pages are in memory then.
#include "layers/io/read_ahead.h"

#include "layers/io/file.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::file::read_ahead_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A file of some MiB on a disk, none of which is in memory.
class ForgottenFile {
 public:
  explicit ForgottenFile(std::size_t mib)
      : path_(folder_.write("weights", std::string(mib * kMiB, 'w'))), file_(open_to_read(path_)), bytes_(mib * kMiB) {
    sync(file_, path_);
    ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  const std::filesystem::path& path() const { return path_; }

  /// Returns how many bytes from `offset` on are in memory.
  std::size_t resident(std::size_t offset, std::size_t bytes) const {
    void* at = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_.get(), 0);
    if (at == MAP_FAILED) return 0;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(bytes_ / page);
    ::mincore(at, bytes_, pages.data());
    ::munmap(at, bytes_);
    const auto first = pages.begin() + static_cast<std::ptrdiff_t>(offset / page);
    return page * static_cast<std::size_t>(std::count_if(first, first + static_cast<std::ptrdiff_t>(bytes / page),
                                                         [](unsigned char flags) { return (flags & 1) != 0; }));
  }
  /// Waits until so many bytes are in memory, for a minute at most, and returns how many are.
  std::size_t wait_for(std::size_t offset, std::size_t bytes) const {
    for (int tries = 0; tries < 6000 && resident(offset, bytes) < bytes; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return resident(offset, bytes);
  }

 private:
  test::TemporaryFolder folder_;
  std::filesystem::path path_;
  posix::UniqueFd file_;
  std::size_t bytes_;
};

TEST(ReadAhead, ReadsTheRangesInOrderAndNoMoreThanItMayBeAhead) {
  const ForgottenFile one(4);
  const ForgottenFile other(8);
  if (other.resident(0, 8 * kMiB) > 0) GTEST_SKIP() << "the file system of the temporary folder keeps all files in memory";
  // A file that isn't there is left out, bytes behind an end don't count, and a range may be empty.
  ReadAhead ahead({{.path = one.path().string() + ".gone"},
                   {.path = one.path(), .offset = 2 * kMiB},
                   {.path = one.path(), .offset = 0, .bytes = 0},
                   {.path = other.path(), .offset = kMiB, .bytes = 6 * kMiB}},
                  4 * kMiB);
  EXPECT_EQ(one.wait_for(2 * kMiB, 2 * kMiB), 2 * kMiB);
  EXPECT_EQ(other.wait_for(kMiB, 2 * kMiB), 2 * kMiB);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which it would ask for more
  EXPECT_EQ(other.resident(3 * kMiB, 5 * kMiB), 0U);
  ahead.passed(3 * kMiB);
  EXPECT_EQ(other.wait_for(kMiB, 5 * kMiB), 5 * kMiB);
  ahead.passed(kMiB);
  EXPECT_EQ(other.wait_for(kMiB, 6 * kMiB), 6 * kMiB);
  EXPECT_EQ(one.resident(0, 2 * kMiB) + other.resident(0, kMiB) + other.resident(7 * kMiB, kMiB), 0U);
}

TEST(ReadAhead, EndsAtOnceWhileItMayNotGoOn) {
  const ForgottenFile file(4);
  std::chrono::steady_clock::time_point begin;
  {
    const ReadAhead ahead({{.path = file.path()}}, kMiB);
    file.wait_for(0, kMiB);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits now
    begin = std::chrono::steady_clock::now();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tsprun::detail::file::read_ahead_test
