// A built-in job that is asked to end in good order: its ranks finish the step, save, and end. The word goes through a page that
// tsprun shares with the ranks that it forks; those of other machines learn of it from them.
#pragma once

#include <atomic>
#include <cstdint>

namespace tsprun::launcher {

class WindDown {
 public:
  /// `within_ns`: how long the ranks have, until the signal ends the job at once. Throws Error(refused) without memory.
  explicit WindDown(std::uint64_t within_ns);
  WindDown(const WindDown&) = delete;
  WindDown& operator=(const WindDown&) = delete;
  ~WindDown();

  std::uint64_t within_ns() const { return within_ns_; }

  /// tsprun's part: the signal that came. It stays asked for in all attempts of the job.
  void ask(int signal) { page_->asked.store(signal); }
  /// The signal for which this tsprun asks; 0: none.
  int asked() const { return page_->asked.load(); }
  /// The signal for which the ranks have ended early, whichever tsprun got it; 0: they haven't.
  int ended_by() const { return page_->ended_by.load(); }

  /// The ranks' part, from any of them.
  void note_ended_by(int signal) { page_->ended_by.store(signal); }

 private:
  struct Page {
    std::atomic<int> asked;
    std::atomic<int> ended_by;
  };
  static_assert(std::atomic<int>::is_always_lock_free);

  std::uint64_t within_ns_;
  Page* page_;
};

}  // namespace tsprun::launcher
