// Asks a built-in job to end early in good order: its ranks finish the step, save, and end. The request is in a page that tsprun
// shares with the ranks that it forks; ranks of other machines learn of it from those.
#pragma once

#include "transport/posix.h"

#include <atomic>
#include <cstdint>

namespace tsprun::detail::launcher {

/// Request to end early, in a page that tsprun and its ranks share. Its functions may be called from all of them at the same
/// time.
class WindDown {
 public:
  /// Makes the page. `within_ns`: how long the ranks have before the signal ends the job. Throws Error(refused) if there is no
  /// memory.
  explicit WindDown(std::uint64_t within_ns);

  std::uint64_t within_ns() const { return within_ns_; }

  /// Asks the ranks to end because of a signal; called by tsprun. The request holds for all attempts of the job.
  void ask(int signal) { page_->asked.store(signal); }
  /// Returns the signal for which this tsprun asks; 0: none.
  int asked() const { return page_->asked.load(); }
  /// Returns the signal for which the ranks have ended early, whichever tsprun got it; 0: they haven't.
  int ended_by() const { return page_->ended_by.load(); }

  /// Records the signal for which the ranks end early; called by any of them.
  void note_ended_by(int signal) { page_->ended_by.store(signal); }

 private:
  struct Page {
    std::atomic<int> asked;
    std::atomic<int> ended_by;
  };
  static_assert(std::atomic<int>::is_always_lock_free);

  std::uint64_t within_ns_;
  posix::Mapping memory_;
  Page* page_;
};

}  // namespace tsprun::detail::launcher
