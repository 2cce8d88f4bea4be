#include "transport/doorbell.h"

#include <algorithm>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tsp {

namespace {
constexpr std::uint64_t kLongestSleep = 100'000'000;

// Shared between processes: no FUTEX_PRIVATE_FLAG.
long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}
}  // namespace

void Doorbell::sleep(std::uint64_t nanoseconds) {
  const std::uint64_t bounded = std::min(nanoseconds, kLongestSleep);
  const timespec timeout{0, static_cast<long>(bounded)};
  futex(&armed, FUTEX_WAIT, 1, &timeout);  // spurious and timed-out returns are fine: the caller looks again
}

void Doorbell::wake() {
  if (armed.exchange(0, std::memory_order_seq_cst) != 0) futex(&armed, FUTEX_WAKE, 1, nullptr);
}

}  // namespace tsp
