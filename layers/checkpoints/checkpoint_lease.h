// The lease of a folder of checkpoints: only the run that holds it saves into the folder. DIR/tsprun.lease names the holder:
//
//   {"tsprun lease":1,"token":…,"run":…,"host":…,"boot":…,"pid":…,"since":…,"locked":1,"beat":17}
//                                                                                     512 bytes, written in one piece
//
// The holder is the tsprun process that leads the job. It keeps a lock (flock) on the file and changes "beat" every two seconds.
// What this proves depends on where the reader runs:
//
//   on the holder's machine        The kernel releases the locks of a dead process. A reader that gets the lock and finds this
//                                  machine's boot identity knows that the holder is dead; one that doesn't get it knows that the
//                                  holder lives.
//   on another machine             Locks of a shared file system may not reach beyond one machine, so getting the lock proves
//                                  nothing; and a server may keep the lock of a machine that is gone for minutes. A beat that
//                                  changes proves that the holder lives. One that doesn't change for ten seconds of the reader's
//                                  own clock (no clocks are compared) makes it likely that the holder is dead, but it may also be
//                                  stopped, or cut off from the file system. So the reader takes the lease over and reads it
//                                  again after a while. A holder that wakes up finds another token at its next beat, and again
//                                  before it gives a checkpoint its name, and then doesn't name it. The short time between that
//                                  check and the renaming can't be closed without help of the file server.
//
// The file is deleted when the lease ends; one that a killed tsprun left behind is taken over.
#pragma once

#include "transport/posix.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace tsprun::detail {

/// Name of the lease's file in the folder.
inline constexpr std::string_view kLeaseName = "tsprun.lease";

/// Contents of the file: who holds the lease.
struct LeaseRecord {
  std::string token;  ///< unique to this lease, 32 hexadecimal digits
  std::string run;    ///< identity of the run
  std::string host;
  std::string boot;  ///< Linux's identity of the machine's boot; empty if unknown
  std::int64_t pid = 0;
  std::string since;    ///< "2026-11-23 05:35:28 UTC", by the holder's clock
  bool locked = false;  ///< the holder has the lock; if not, only its beat shows that it lives
  std::uint64_t beat = 0;

  bool operator==(const LeaseRecord&) const = default;
};

/// Returns what a folder's lease says now; nothing if there is none or it can't be read.
std::optional<LeaseRecord> read_lease(const std::filesystem::path& dir);

/// Throws Error(refused) unless the lease of `dir` still has this token. Any process may call it.
void check_lease(const std::filesystem::path& dir, const std::string& token);

/// Times of a lease: how often a holder beats, and how long others wait for signs of life. Tests use shorter ones.
struct LeaseTimes {
  std::chrono::milliseconds beat{2000};      ///< time between beats
  std::chrono::milliseconds silence{10000};  ///< time without a beat until a holder on another machine counts as dead
  std::chrono::milliseconds settle{3000};    ///< time from taking over until the file is read again; more than a beat
  std::chrono::milliseconds dying{2000};     ///< longest wait for a lock on this machine, while processes of the last run end
  std::chrono::milliseconds begin{30000};    ///< longest wait for the thread that beats to begin
};

/// A lease that is held, from construction to destruction, with a thread that changes the beat.
class CheckpointLease {
 public:
  /// Takes the lease of `dir` for a run; creates the folder if it is missing. If the file names a holder of which only time can
  /// tell whether it lives, first calls `on_wait` with a line about it, then waits. Throws Error(refused) that names the holder
  /// if one lives, or if the folder can't be written; Error(stalled) if the thread doesn't begin in time.
  CheckpointLease(const std::filesystem::path& dir, const std::string& run,
                  const std::function<void(const std::string&)>& on_wait = {}, const LeaseTimes& times = {});
  CheckpointLease(const CheckpointLease&) = delete;
  CheckpointLease& operator=(const CheckpointLease&) = delete;
  /// Gives the lease back, and deletes the folder if the constructor created it and it is still empty.
  ~CheckpointLease();

  const std::string& token() const { return record_.token; }

 private:
  void open_and_lock();
  bool is_the_file() const;
  void take(const std::function<void(const std::string&)>& on_wait);
  void write();
  void begin_to_beat();
  void give_up();
  void beat_on(const std::string& text);

  std::filesystem::path dir_;
  std::filesystem::path path_;
  LeaseTimes times_;
  LeaseRecord record_;
  posix::UniqueFd file_;
  bool made_folder_ = false;
  bool made_file_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread beating_;
};

}  // namespace tsprun::detail
