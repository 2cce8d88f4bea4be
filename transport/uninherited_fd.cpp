// Keeps the list of such descriptors, and replaces them in the child (pthread_atfork(3)).
#include "transport/uninherited_fd.h"

#include <fcntl.h>
#include <mutex>
#include <pthread.h>
#include <set>
#include <unistd.h>

namespace tsprun::detail::posix {

namespace {

/// All such descriptors of this process. The mutex is held across a fork, so that the child finds the list whole; the C library
/// sees to it that the child may use malloc.
struct UninheritedList {
  std::mutex mutex;
  std::set<int> descriptors;

  /// Runs in the child, which has none of them any more: its own children keep what it opens by these numbers.
  void replace() {
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int descriptor : descriptors) {
      if (null < 0) ::close(descriptor);
      else ::dup3(null, descriptor, O_CLOEXEC);
    }
    if (null >= 0) ::close(null);
    descriptors.clear();
  }
};

/// Never destroyed: a process may fork until its very end.
UninheritedList& uninherited() {
  static UninheritedList& list = [&]() -> UninheritedList& {
    ::pthread_atfork([] { uninherited().mutex.lock(); }, [] { uninherited().mutex.unlock(); },
                     [] {
                       uninherited().replace();
                       uninherited().mutex.unlock();
                     });
    return *new UninheritedList;
  }();
  return list;
}

}  // namespace

UninheritedFd::UninheritedFd(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_) return;
  UninheritedList& list = uninherited();
  const std::scoped_lock lock(list.mutex);
  list.descriptors.insert(fd_.get());
}

void UninheritedFd::reset() {
  if (!fd_) return;
  UninheritedList& list = uninherited();
  const std::scoped_lock lock(list.mutex);
  list.descriptors.erase(fd_.get());
  fd_.reset();
}

}  // namespace tsprun::detail::posix
