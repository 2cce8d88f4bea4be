// Logs the connections that a listener refuses. Within a second it logs the first few, and the first of each reason, one by
// one, and of the rest only the number. So a flood of strangers neither fills the log, nor hides other refusals in it, nor
// costs the time of writing it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {

/// The refusals of one listener. One thread at a time.
class RefusalLog {
 public:
  /// Takes the name of the listener for the log, such as "the store".
  explicit RefusalLog(std::string listener) : listener_(std::move(listener)) {}
  /// Counts a refused connection from `address`, and logs it if it is one of the first or has a new reason.
  void refused(std::string_view address, std::string_view why);
  /// Logs the number of refusals that the last second left out. Call it in every round of the listener's loop. Without refusals
  /// it costs nothing, not even a look at the clock.
  void tick() {
    if (count_ != 0) look();
  }

 private:
  void look();

  std::string listener_;
  std::uint64_t since_ns_ = 0;  // start of the second in which refusals are counted
  std::uint64_t count_ = 0;     // refusals in that second
  std::uint64_t told_ = 0;      // refusals logged one by one
  std::vector<std::string> reasons_;
};

}  // namespace tsprun::detail::bootstrap
