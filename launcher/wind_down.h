// Asks a built-in job to end early in good order: its ranks finish the step, save, and end. Or asks it to save and go on. The
// requests are in a page that tsprun shares with the ranks that it forks; ranks of other machines learn of them from those.
#pragma once

#include "transport/posix.h"

#include <atomic>
#include <cstdint>

namespace tsprun::detail::launcher {

/// Requests to end early, and to save, in a page that tsprun and its ranks share. Its functions may be called from all of them at
/// the same time.
class WindDown {
 public:
  /// Makes the page. `within_ns`: how long the ranks have before the signal ends the job; `save_signal`: the signal on which they
  /// save and go on. Throws Error(refused) if there is no memory.
  WindDown(std::uint64_t within_ns, int save_signal);

  std::uint64_t within_ns() const { return within_ns_; }
  int save_signal() const { return save_signal_; }

  /// Asks the ranks to end because of a signal; called by tsprun. The request holds for all attempts of the job.
  void ask(int signal) { page_->asked.store(signal); }
  /// Returns the signal for which this tsprun asks; 0: none.
  int asked() const { return page_->asked.load(); }
  /// Returns the signal for which the ranks have ended early, whichever tsprun got it; 0: they haven't.
  int ended_by() const { return page_->ended_by.load(); }

  /// Records the signal for which the ranks end early; called by any of them.
  void note_ended_by(int signal) { page_->ended_by.store(signal); }

  /// Asks the ranks to save and go on; called by tsprun.
  void ask_to_save() { page_->saves.fetch_add(1); }
  /// Returns true if the ranks were asked to save, and haven't begun to since.
  bool asked_to_save() const { return page_->saves.load() != page_->begun_saves.load(); }
  /// Records that the ranks save now; called by each of them.
  void note_save() { page_->begun_saves.store(page_->saves.load()); }

 private:
  struct Page {
    std::atomic<int> asked;
    std::atomic<int> ended_by;
    std::atomic<int> saves;
    std::atomic<int> begun_saves;
  };
  static_assert(std::atomic<int>::is_always_lock_free);

  std::uint64_t within_ns_;
  int save_signal_;
  posix::Mapping memory_;
  Page* page_;
};

}  // namespace tsprun::detail::launcher
