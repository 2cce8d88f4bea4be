// What a listener says in the log of those whom it doesn't let in: the first few of a second and the first for each reason one by
// one, the rest as a number, so that a flood of strangers neither drowns the log, nor hides others in it, nor costs what writing
// it would.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::bootstrap {

class RefusalLog {
 public:
  /// `who` refuses: "the store".
  explicit RefusalLog(std::string who) : who_(std::move(who)) {}
  /// `address`: of the other end.
  void refused(std::string_view address, std::string_view why);
  /// To be called in every round: says what the last second left out. Without refusals it costs nothing, not even a look at the
  /// clock.
  void tick() {
    if (count_ != 0) look();
  }

 private:
  void look();

  std::string who_;
  std::uint64_t since_ns_ = 0;  // when the second began in which refusals are counted
  std::uint64_t count_ = 0;     // in it
  std::uint64_t told_ = 0;      // of them
  std::vector<std::string> reasons_;
};

}  // namespace tsprun::bootstrap
