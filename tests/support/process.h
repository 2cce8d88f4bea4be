// Programs under test as processes: started with an environment, watched, killed, and searched for what they left behind.
#pragma once

#include "tests/support/patience.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace tsprun::detail::test {

struct ProcessOptions {
  std::map<std::string, std::string> environment;  ///< on top of this process's, from which variables of all starters are removed
  std::string input = {};                          ///< what stdin holds
  int cores = 0;                                   ///< bind to so many of this process's cores; 0: all
};

/// How a process ended.
struct End {
  bool ended = false;       ///< false: it still ran at the deadline, and was killed by the test
  int code = -1;            ///< exit code, or 128 + signal as a shell says
  double seconds = 0;       ///< from its start to its end, as a machine that isn't busy counts them (patience.h)
  std::uint64_t at_ns = 0;  ///< when it ended, by posix::now_ns()
};

/// A running child. Its descendants all bear a mark in their environment, by which they are found wherever they went.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// Kills the child if it still runs, and all that bear its mark.
  ~Process();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits at most that long for its end, then a moment for what it wrote last. Seconds are those of until(), here and below.
  End wait(double seconds = 60);
  /// Waits until stdout holds `text` at least `times` times. Returns false at the deadline, or if the process ended before.
  bool wait_for_output(const std::string& text, int times = 1, double seconds = 30);
  std::string out();
  std::string err();

  /// Processes that bear the mark, this child included.
  std::vector<pid_t> marked() const;
  /// Waits until no process bears the mark. Returns false at the deadline.
  bool wait_until_nothing_is_left(double seconds) const;
  /// Pids of marked processes whose environment holds RANK=rank.
  std::vector<pid_t> of_rank(int rank) const;

 private:
  void read_into(int fd, std::string& text);
  bool output_is_closed();

  std::string mark_;
  pid_t pid_ = -1;
  PatientWatch watch_;
  End end_;
  std::mutex mutex_;
  std::string out_;
  std::string err_;
  int closed_ = 0;  // of the two pipes
  std::thread reader_out_;
  std::thread reader_err_;
};

/// End and output of a finished run.
struct Finished {
  End end;
  std::string out;
  std::string err;

  /// Returns what failure messages say of the process.
  std::string describe() const;
};

/// Runs a program to its end and checks that nothing of it is left: no process, no file in /dev/shm, no abstract socket.
Finished run_program(const std::vector<std::string>& arguments, const ProcessOptions& options = {}, double seconds = 60);
/// Does the same for tsprun with these arguments; where it trains, evaluates or computes a block, `--audit strict` is added.
Finished run_tsprun(const std::vector<std::string>& arguments, const ProcessOptions& options = {}, double seconds = 60);

std::string tsprun_path();
std::string program_path(const std::string& name);

/// {tsprun, options…, run, --, actor, action…}
std::vector<std::string> tsprun_actor(const std::vector<std::string>& options, const std::vector<std::string>& action);

/// Returns our names outside of processes: files in /dev/shm and abstract sockets.
std::set<std::string> shared_names();
/// Returns those that weren't there `before`, stay for five seconds, and aren't those of a living process of others: other jobs
/// run on the machine, other tests' too.
std::set<std::string> names_left(const std::set<std::string>& before);

std::vector<std::string> lines_of(const std::string& text);
std::vector<std::string> sorted_lines(const std::string& text);

/// A path in a directory that is removed with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A JSON file's content; a test failure and null if it can't be read.
nlohmann::json read_json(const std::string& path);

}  // namespace tsprun::detail::test
