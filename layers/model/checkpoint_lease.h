// The lease of a folder of checkpoints: one run at a time saves into it. DIR/tsprun.lease says who:
//
//   {"tsprun lease":1,"token":…,"run":…,"host":…,"boot":…,"pid":…,"since":…,"locked":1,"beat":17}
//                                                                                     512 bytes, written in one piece
//
// and its holder, the tsprun that leads the job, keeps a lock (flock) on it and changes its beat every two seconds. What that can
// prove, and to whom:
//
//   on the machine of the holder   The kernel takes a dead process's locks away. Who gets the lock and reads this machine's boot
//                                  there knows that the holder is dead; who doesn't get it, that it lives.
//   on another machine             Locks of a shared file system may reach no further than one machine, so getting one proves
//                                  nothing; and a server may keep the lock of a machine that is gone for minutes. A beat that
//                                  changes proves that the holder lives. One that doesn't for ten seconds
//                                  of the reader's own clock (no clocks are compared) makes it likely that it is dead: it may as
//                                  well stand still, or be cut off from the file system. So the lease is taken over, and after a
//                                  while read again; and a holder that wakes finds another token at its next beat, and before
//                                  it gives a checkpoint its name, which it then doesn't. Between that look and the name lies a
//                                  moment that no lease closes without help of the file server.
//
// The file goes away with the lease; one that a killed tsprun left is taken over.
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

namespace tsprun {

inline constexpr std::string_view kLeaseName = "tsprun.lease";

/// What the file says of its holder.
struct LeaseRecord {
  std::string token;  ///< of this lease alone, 32 hexadecimal digits
  std::string run;    ///< the identity of the run
  std::string host;
  std::string boot;  ///< the machine's boot, as Linux identifies it; empty if that can't be told
  std::int64_t pid = 0;
  std::string since;    ///< "2026-11-23 05:35:28 UTC", by the holder's clock
  bool locked = false;  ///< the holder has the lock; else its life can be told by its beat alone
  std::uint64_t beat = 0;

  bool operator==(const LeaseRecord&) const = default;
};

/// What a folder's lease says now; nothing: there is none, or it can't be read.
std::optional<LeaseRecord> read_lease(const std::filesystem::path& dir);

/// Throws Error(refused) unless the lease of `dir` is still the one with that token. Any process may ask.
void check_lease(const std::filesystem::path& dir, const std::string& token);

/// How long is waited for signs of a holder. Tests have less time.
struct LeaseTimes {
  std::chrono::milliseconds beat{2000};
  std::chrono::milliseconds silence{10000};  ///< of a holder on another machine, until it is taken for dead
  std::chrono::milliseconds settle{3000};    ///< after taking over, until it is read again: more than a beat
  std::chrono::milliseconds dying{2000};     ///< for a lock on this machine: processes of the last run that are about to end
};

class CheckpointLease {
 public:
  /// Takes the lease of `dir` for a run; makes the folder if it isn't there. Where the file names a holder whose life or death
  /// only time can tell, `on_wait` is called with a line about it first. Throws Error(refused) that names the holder, if one
  /// lives; or that the folder can't be written.
  CheckpointLease(const std::filesystem::path& dir, const std::string& run,
                  const std::function<void(const std::string&)>& on_wait = {}, const LeaseTimes& times = {});
  CheckpointLease(const CheckpointLease&) = delete;
  CheckpointLease& operator=(const CheckpointLease&) = delete;
  /// Gives it back, and takes an empty folder away that it made.
  ~CheckpointLease();

  const std::string& token() const { return record_.token; }

 private:
  void open_and_lock();
  bool is_the_file() const;
  void take(const std::function<void(const std::string&)>& on_wait);
  void write();
  void beat_on();

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

}  // namespace tsprun
