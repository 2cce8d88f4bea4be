// The job's secret: one page for all copies, left out of core dumps, wiped at the end.
#include "transport/bootstrap/secret.h"

#include "tests/support/dumped_memory.h"
#include "transport/bootstrap/libcrypto_heap.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::bootstrap::secret_test {
namespace {

template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};
template <class T>
concept Range = requires(const T& value) {
  value.begin();
};
static_assert(!Printable<Secret> && !fmt::is_formattable<Secret>::value && !Range<Secret>);

std::array<std::byte, 32> counted(unsigned first) {
  std::array<std::byte, 32> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

/// The mapping in which an address lies.
test::MappedRegion region_of(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  for (const test::MappedRegion& region : test::mapped_regions(::getpid())) {
    if (region.begin <= number && number < region.end) return region;
  }
  return {};
}

TEST(Secret, IsEqualToOneOfTheSameBytesAlone) {
  const Secret one(counted(1));
  EXPECT_EQ(one, Secret(counted(1)));
  for (std::size_t at = 0; at < Secret::kBytes; ++at) {
    auto bytes = counted(1);
    bytes[at] ^= std::byte{0x80};
    EXPECT_FALSE(one == Secret(bytes)) << at;
  }
  EXPECT_EQ(Secret(), Secret(std::array<std::byte, 32>{}));
  EXPECT_FALSE(Secret() == one);
}

TEST(Secret, LiesInAPageThatCoreDumpsLeaveOutAndCopiesShare) {
  const Secret one(counted(1));
  const Secret copy = one;  // NOLINT(performance-unnecessary-copy-initialization): it is what is tested
  EXPECT_EQ(copy.bytes().data(), one.bytes().data());
  const test::MappedRegion page = region_of(one.bytes().data());
  EXPECT_GT(page.end, page.begin);
  EXPECT_FALSE(page.dumped);
  EXPECT_FALSE(page.shared());
}

TEST(Secret, GoesWithItsLastCopy) {
  const std::byte* where = nullptr;
  Secret outer;
  {
    const Secret inner(counted(7));
    where = inner.bytes().data();
    outer = inner;
  }
  EXPECT_EQ(outer.bytes()[0], std::byte{7});
  outer = Secret();
  EXPECT_TRUE(region_of(where).dumped) << "the page isn't unmapped";
}

// Ranks are forked.
TEST(Secret, IsThereInAForkedChild) {
  const Secret one(counted(3));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(one == Secret(counted(3)) && !region_of(one.bytes().data()).dumped ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HeapOfLibcrypto, IsNotChangedOnceItIsInUse) {
  EXPECT_FALSE(random_secret() == random_secret());
  EXPECT_FALSE(hide_heap_of_libcrypto());
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::secret_test
