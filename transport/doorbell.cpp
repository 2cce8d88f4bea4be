// Sleeps and wakes with futex(2), or with an eventfd in an epoll set.
#include "transport/doorbell.h"

#include "transport/cause.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tsprun::detail {

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
  if (!claim()) return;
  if (bell == 0) {
    futex(&armed, FUTEX_WAKE, 1, nullptr);
    return;
  }
  // A full counter (EAGAIN) wakes as well; nothing else can be done about an error here.
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_descriptor(), &one, sizeof one);
}

SleepSet::SleepSet(Doorbell& doorbell, std::span<const int> descriptors) : doorbell_(&doorbell) {
  const bool any = std::any_of(descriptors.begin(), descriptors.end(), [](int descriptor) { return descriptor >= 0; });
  if (!any && doorbell.bell == 0) return;
  epoll_ = posix::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) throw system_error(Cause::refused, "epoll_create of what a rank sleeps on", errno);
  const auto add = [&](int descriptor) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (descriptor >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      throw system_error(Cause::refused, "epoll_ctl of what a rank sleeps on", errno);
    }
  };
  add(doorbell.bell_descriptor());
  for (const int descriptor : descriptors) add(descriptor);
}

void SleepSet::sleep(std::uint64_t nanoseconds) {
  if (!epoll_) {
    doorbell_->sleep(nanoseconds);
    return;
  }
  // If the bell was rung since arm(), the eventfd, if there is one, is readable already.
  const std::uint64_t bounded = std::min(nanoseconds, kLongestSleep);
  const timespec timeout{0, static_cast<long>(bounded)};
  epoll_event events[4];
  int count = static_cast<int>(::syscall(SYS_epoll_pwait2, epoll_.get(), events, 4, &timeout, nullptr, 0));
  if (count < 0 && (errno == ENOSYS || errno == EPERM)) {  // before Linux 5.11, or forbidden by an older seccomp profile
    count = ::epoll_wait(epoll_.get(), events, 4, static_cast<int>((bounded + 999'999) / 1'000'000));
  }
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd != doorbell_->bell_descriptor()) continue;
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t got = ::read(events[i].data.fd, &rings, sizeof rings);
  }
}

}  // namespace tsprun::detail
