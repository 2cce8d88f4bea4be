// A descriptor that a forked child doesn't keep open: the other end of a rank's socket must see the rank's end, though a process
// that the rank forked, such as one of a DataLoader, lives on.
#pragma once

#include "transport/posix.h"

#include <utility>

namespace tsprun::detail::posix {

/// Owns a descriptor. In a child that fork(2) makes, its number leads to /dev/null (or, if that can't be opened, is closed), so
/// that whatever the child does with its copy of this object concerns the child alone. Any thread may own some; each is used by
/// one at a time.
class UninheritedFd {
 public:
  UninheritedFd() = default;
  explicit UninheritedFd(UniqueFd fd);
  UninheritedFd(UninheritedFd&& other) noexcept : fd_(std::move(other.fd_)) {}
  UninheritedFd& operator=(UninheritedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
    }
    return *this;
  }
  ~UninheritedFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  /// Closes the descriptor.
  void reset();

 private:
  UniqueFd fd_;
};

}  // namespace tsprun::detail::posix
