// The ranks of one job from start to end: an event loop over signals, rank processes, their output, and other nodes.
//
//   running ──(a rank fails, the board says so, a signal comes)──▶ ending ──(all ranks are gone)──▶ over
//
// While a job is ending, the abort word on the flight board makes the ranks end by themselves. Ranks that don't end get SIGTERM
// (only programs under `run`), then SIGKILL, so that after a failure all are gone within a second.
#pragma once

#include "core/board/boards.h"
#include "launcher/cluster.h"
#include "launcher/event_loop.h"
#include "launcher/link_choices.h"
#include "launcher/output.h"
#include "launcher/rank_process.h"
#include "launcher/report_sink.h"
#include "launcher/signals.h"
#include "launcher/supervisor.h"
#include "launcher/terminal_relay.h"
#include "launcher/verdict.h"
#include "transport/machine.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>
#include <vector>

namespace tsprun::detail::launcher {

/// Network parts of a job. At most one of store and cluster is set.
struct JobNet {
  LinkChoices choices;
  std::optional<bootstrap::StoreServer> store;  ///< where ranks leave their addresses, if all nodes are on this machine
  std::optional<Cluster> cluster;               ///< connection to the launchers of other nodes, with --nnodes
};

/// A job as this tsprun sees it. Used by one thread.
class Job {
 public:
  /// Prepares a job; starts nothing. `spec` and `net` must outlive it. Throws Error(refused) if the kernel has no pidfd_open
  /// (Linux 5.3).
  Job(const JobSpec& spec, std::vector<shm::NodeMemory> memories, JobNet& net);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  /// Kills the ranks that still run, and what they left behind.
  ~Job();

  /// Starts all ranks, or fewer if a signal ends the job meanwhile. `open_files`: the limits that ranks are started with;
  /// `traces`: where a program's ranks leave their traces, null: nowhere. Throws Error(refused) if a rank can't be started; the
  /// destructor then ends those that were.
  void start(const rlimit& open_files, const RankTraces* traces = nullptr);
  /// Runs the event loop. Returns when all ranks are gone, their output was passed on and, with other nodes, it is settled how
  /// the job ended.
  void watch();
  /// Prints text on stderr, after everything that the ranks wrote. Waits for the reader to take it, until a signal that asks
  /// tsprun to end cuts the wait short.
  void print_on_stderr(const std::string& text);

  /// Returns the first failure; its cause is none if the job succeeded.
  const Failure& failure() const { return failure_; }
  /// Returns what is known of each rank, by rank.
  const std::vector<RankRecord>& records() const { return records_; }
  /// Returns the flight board, which shows all ranks.
  const FlightBoard& board() const { return board_; }
  /// Returns the time (posix::now_ns) at which the ranks were started.
  std::uint64_t start_ns() const { return start_ns_; }
  /// Returns the time (posix::now_ns) at which the job began to end, because a failure was seen; 0 if none was.
  std::uint64_t ending_since_ns() const { return ending_since_ns_; }
  /// Returns tsprun's exit code for this job.
  int exit_code() const;
  /// Returns the signal that asked tsprun to end, however the job ended; 0: none came.
  int asked_to_end_by() const { return request_.signal(); }
  /// Takes the signals that have come since watch() returned: left pending, they would end tsprun before it has written its
  /// report. One that asks for the end is kept, see late_signal().
  void take_late_signals();
  /// Returns what rank 0 of a built-in command put into its sink.
  const nlohmann::ordered_json& results() const { return results_; }

 private:
  bool built_in() const { return static_cast<bool>(spec_->rank_main); }
  bool alive(int rank) const { return here(rank) && !records_[static_cast<std::size_t>(rank)].end.ended; }
  bool here(int rank) const { return rank >= here_.first && rank < here_.first + here_.count; }
  RankProcess& process(int rank) { return processes_[static_cast<std::size_t>(rank)]; }

  void handle(const Event& event);
  void handle_signals();
  bool ask_to_wind_down(int signal);
  bool ask_programs_to_end(int signal);
  bool lets_ranks_end() const { return wind_down_until_ns_ != 0 || programs_until_ns_ != 0; }
  void watch_output();
  void watch_time_to_end();
  void handle_signal(int signal);
  void handle_asking_signal(int signal);
  bool pass_on(int signal);
  void hear_own_signals(const RankEnd& end);
  void interrupt(int signal);
  void end_interrupted(int signal);
  void give_up(const Failure& failure, int signal);
  void stop_all();
  void follow_stops();
  void look_at_ranks(bool all);
  void judge_silence();
  pid_t worker(int rank);
  void rank_ended(int rank);
  void judge(int rank, const RankEnd& end);
  void begin_ending(const std::optional<Failure>& own);
  void end_patiently();
  void kill_ranks();
  void leave_held_ranks();
  void complete_abort();
  void name_earlier_death();
  RankEnd look_at_end(int rank) const;
  Failure failure_of(int rank, const RankEnd& end) const;
  void note_activities();
  int tick_ms() const;
  bool others_done();
  void share_news();
  void print_ways();
  void tell_others();
  void spread_failure();
  void signal_ranks(int signal, int but = -1);

  void read_results(int rank);
  void read_relay(LineRelay& relay, Output& output);
  void arrange_flow();
  void read_ranks(Source source, bool on);
  bool drain(Output& output);
  void pass_on_the_rest();

  const JobSpec* spec_;
  JobNet* net_;
  RankBlock here_;
  Boards boards_;
  FlightBoard board_;  ///< the board that this tsprun reads; it shows all ranks
  SignalReader signals_;
  EventLoop loop_;
  Output stdout_;
  Output stderr_;
  std::optional<TerminalRelay> terminal_;  // `run` and commands that read stdin
  FrameReader frames_;
  posix::UniqueFd own_pidfd_;
  std::vector<pid_t> strangers_;        ///< children from before the job, such as those of a shell that ended in `exec tsprun`
  std::vector<pid_t> stranger_groups_;  ///< process groups of those, and of tsprun itself
  std::vector<RankProcess> processes_;  ///< by rank; empty for ranks of other machines
  std::vector<RankRecord> records_;     ///< by rank
  std::vector<std::uint64_t> signs_;    ///< by rank: its signs of life when stopped ranks were last looked for
  int living_ = 0;
  bool text_is_open_ = false;  ///< the last piece of text on stdout didn't end in a newline
  bool reading_stdout_ = false;
  bool reading_stderr_ = false;
  std::uint64_t reader_until_ns_ = 0;  // when the wait for the reader of our output ends, after a signal; 0: none came

  std::uint64_t start_ns_ = 0;
  std::uint64_t last_news_ns_ = 0;
  bool said_bye_ = false;
  bool said_choices_ = false;
  bool news_ = false;  ///< a rank's end is on the board, and the ranks that wait for it haven't been woken
  bool ending_ = false;
  bool sent_term_ = false;
  bool sent_kill_ = false;
  std::uint64_t killed_ns_ = 0;  ///< when ranks got SIGKILL, or the last of them has ended since
  bool hurried_ = false;         ///< a second signal came: don't wait for other nodes
  std::uint64_t ending_since_ns_ = 0;
  int interrupted_by_ = 0;
  EndingRequest request_;
  bool started_ = false;                  // start() is over
  std::uint64_t wind_down_until_ns_ = 0;  // deadline for the ranks to save and end early; 0: they weren't asked to
  std::uint64_t programs_until_ns_ = 0;   // the same for programs, which got the signal
  bool said_programs_end_ = false;        // that programs which got the signal still run
  std::uint64_t asked_to_save_ns_ = 0;    // when a signal last asked the ranks to save and go on; 0: none did
  int leaving_ = -1;  // the rank that is blamed for having left, while how its process ends isn't known; -1: none
  Failure failure_;
  Failure own_failure_;  // what tsprun itself found; used if the board's first failure is never completed
  int first_failing_ = -1;
  machine::OutOfMemoryKills killed_before_;  ///< the counts when the job began
  nlohmann::ordered_json results_ = nlohmann::ordered_json::object();
};

}  // namespace tsprun::detail::launcher
