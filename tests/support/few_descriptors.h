// A process that is short of file descriptors.
#pragma once

#include "transport/posix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

// UndefinedBehaviorSanitizer makes a pipe to look at an object's type: without a descriptor it calls every object invalid.
#if !defined(TSP_SANITIZE_ADDRESS)

namespace tsprun::detail::test {

/// While it lives, this process has so many file descriptors left, whichever it was started with.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t left) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit tight{512, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    for (posix::UniqueFd each(::dup(STDERR_FILENO)); each; each = posix::UniqueFd(::dup(STDERR_FILENO)))
      taken_.push_back(std::move(each));
    EXPECT_GE(taken_.size(), left);
    taken_.resize(std::max(taken_.size(), left) - left);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<posix::UniqueFd> taken_;
};

}  // namespace tsprun::detail::test

#endif
