// Counts refusals, and decides which of them are logged in full.
#include "transport/bootstrap/refusal_log.h"

#include "transport/log.h"
#include "transport/posix.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace tsprun::detail::bootstrap {

namespace {
constexpr std::uint64_t kOneByOne = 5;
constexpr std::size_t kReasons = 16;
constexpr std::uint64_t kSecond_ns = 1'000'000'000;
}  // namespace

void RefusalLog::refused(std::string_view address, std::string_view why) {
  tick();
  if (count_ == 0) since_ns_ = posix::now_ns();
  ++count_;
  const bool is_new = reasons_.size() < kReasons && std::ranges::find(reasons_, why) == reasons_.end();
  if (is_new) reasons_.emplace_back(why);
  if (count_ > kOneByOne && !is_new) return;
  ++told_;
  logger().warn("{} refused a connection from {}: {}", listener_, address, why);
}

void RefusalLog::look() {
  if (posix::now_ns() - since_ns_ < kSecond_ns) return;
  if (count_ > told_) logger().warn("{} refused {} more connections within a second", listener_, count_ - told_);
  count_ = 0;
  told_ = 0;
  reasons_.clear();
}

}  // namespace tsprun::detail::bootstrap
