// Wraps epoll(7).
#include "launcher/event_loop.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <sys/epoll.h>

namespace tsprun::detail::launcher {

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw system_error(Cause::refused, "epoll_create1", errno);
}

void EventLoop::watch(int descriptor, Source source, int rank, bool write) {
  if (descriptor < 0 || watched_.contains(descriptor)) return;
  epoll_event event{.events = write ? EPOLLOUT : EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw system_error(Cause::refused, fmt::format("watching descriptor {}", descriptor), errno);
  }
  watched_[descriptor] = {source, rank};
}

void EventLoop::ignore(int descriptor) {
  if (descriptor < 0 || watched_.erase(descriptor) == 0) return;
  epoll_event unused{};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, &unused);
}

std::vector<Event> EventLoop::wait(int milliseconds) {
  std::array<epoll_event, 64> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), milliseconds);
  std::vector<Event> events;
  for (int i = 0; i < count; ++i) {
    const auto found = watched_.find(ready[static_cast<std::size_t>(i)].data.fd);
    if (found != watched_.end()) events.push_back(found->second);
  }
  return events;
}

}  // namespace tsprun::detail::launcher
