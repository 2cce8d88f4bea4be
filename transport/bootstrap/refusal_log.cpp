#include "transport/bootstrap/refusal_log.h"

#include "transport/posix.h"

#include <spdlog/spdlog.h>

namespace tsp::bootstrap {

namespace {
constexpr std::uint64_t kOneByOne = 5;
constexpr std::uint64_t kSecond_ns = 1'000'000'000;
}  // namespace

void RefusalLog::refused(std::string_view address, std::string_view why) {
  tick();
  if (count_ == 0) since_ns_ = posix::now_ns();
  if (++count_ <= kOneByOne) spdlog::warn("{} refused a connection from {}: {}", who_, address, why);
}

void RefusalLog::tick() {
  if (count_ == 0 || posix::now_ns() - since_ns_ < kSecond_ns) return;
  if (count_ > kOneByOne) spdlog::warn("{} refused {} more connections within a second", who_, count_ - kOneByOne);
  count_ = 0;
}

}  // namespace tsp::bootstrap
