// A link that all who are on it share evenly, byte by byte, instead of one after another: the spine, over whose many switches
// quanta of all nodes go at once. So it makes no difference whether several equal quanta are on it, or one that stands for all of
// them (folding): they leave at the same time.
//
// Everyone on it gets equally many bytes, so one count of them is enough: whoever came at count V with b bytes leaves at V + b.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

namespace tsprun::detail::sim {

/// Link that is shared. Times are seconds and don't go back.
class SharedLink {
 public:
  explicit SharedLink(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  /// Lets somebody come at `now` with so many bytes.
  void come(double now, std::uint32_t who, double bytes) {
    advance(now);
    if (here_.empty()) carried_ = 0;
    here_.insert({.leaves_at = carried_ + bytes, .came = ++came_, .who = who});
  }
  bool empty() const { return here_.empty(); }
  /// Returns when the next one leaves if nobody comes before. Precondition: somebody is here.
  double next() const { return at_ + (here_.begin()->leaves_at - carried_) * static_cast<double>(here_.size()) / bytes_per_s_; }
  /// Lets the next one leave, at the time next(), and returns who it is.
  std::uint32_t leave() {
    const One first = *here_.begin();
    advance(next());
    carried_ = first.leaves_at;
    here_.erase(here_.begin());
    return first.who;
  }

 private:
  struct One {
    double leaves_at;  // in bytes of the count
    std::uint64_t came;
    std::uint32_t who;
    bool operator<(const One& other) const {
      return leaves_at != other.leaves_at ? leaves_at < other.leaves_at : came < other.came;
    }
  };
  void advance(double now) {
    now = std::max(at_, now);
    if (!here_.empty()) carried_ += (now - at_) * bytes_per_s_ / static_cast<double>(here_.size());
    at_ = now;
  }

  double bytes_per_s_;
  double at_ = 0;
  double carried_ = 0;  // bytes that each of those here was carried since the link was last empty
  std::uint64_t came_ = 0;
  std::set<One> here_;
};

}  // namespace tsprun::detail::sim
