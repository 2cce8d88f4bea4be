// The ranks of one job from their start to their end: a loop over everything that can happen to them.
//
//   running ──(a rank fails, the board says so, a signal comes)──▶ ending ──(all ranks are gone)──▶ over
//
// When a job is ending the board's abort word makes ranks end by themselves; those that don't get SIGTERM, then SIGKILL, so that
// after a failure all are gone within a second.
#pragma once

#include "core/board/flight_board.h"
#include "launcher/boards.h"
#include "launcher/cluster.h"
#include "launcher/event_loop.h"
#include "launcher/output.h"
#include "launcher/rank_process.h"
#include "launcher/report_sink.h"
#include "launcher/signals.h"
#include "launcher/supervisor.h"
#include "launcher/terminal_relay.h"
#include "launcher/verdict.h"
#include "launcher/ways.h"
#include "transport/machine.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>
#include <vector>

namespace tsprun::launcher {

/// What a job with sockets has besides its ranks: at most one of store and cluster.
struct JobNet {
  Ways ways;
  std::optional<bootstrap::StoreServer> store;  ///< all nodes are here: where ranks leave their addresses
  std::optional<Cluster> cluster;               ///< the other nodes' launchers
};

class Job {
 public:
  /// `net` must outlive the job.
  Job(const JobSpec& spec, std::vector<shm::NodeMemory> memories, JobNet& net);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  /// Kills what still runs.
  ~Job();

  /// Starts all ranks, or as many as there is time for before a signal ends the job. `open_files`: their limits.
  /// Throws Error(refused) if that fails half-way; the destructor then ends those that had begun.
  void start(const rlimit& open_files);
  /// Returns when all ranks are gone and their output was passed on.
  void watch();
  /// Last words, after everything the ranks wrote. Waits for their reader until a signal ends its patience.
  void print_on_stderr(const std::string& text);

  /// The first failure; cause none if the job succeeded.
  const Failure& failure() const { return failure_; }
  const std::vector<RankRecord>& records() const { return records_; }
  /// All ranks' board.
  const FlightBoard& board() const { return board_; }
  /// posix::now_ns when ranks were started, and when the job began to end: a failure was seen.
  std::uint64_t start_ns() const { return start_ns_; }
  std::uint64_t ending_since_ns() const { return ending_since_ns_; }
  /// tsprun's exit code.
  int exit_code() const;
  /// A signal that asked tsprun to end, however the job ended; 0: none came.
  int asked_to_end_by() const { return asked_to_end_by_; }
  /// What rank 0 of a built-in command put into its sink.
  const nlohmann::ordered_json& results() const { return results_; }

 private:
  bool built_in() const { return static_cast<bool>(spec_->rank_main); }
  bool alive(int rank) const { return here(rank) && !records_[static_cast<std::size_t>(rank)].end.ended; }
  bool here(int rank) const { return rank >= here_.first && rank < here_.first + here_.count; }
  RankProcess& process(int rank) { return processes_[static_cast<std::size_t>(rank)]; }

  void handle(const Event& event);
  void handle_signals();
  bool ask_to_wind_down(int signal);
  void handle_signal(int signal);
  void hear_own_signals(const RankEnd& end);
  void interrupt(int signal);
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
  void signal_ranks(int signal);

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
  FlightBoard board_;  ///< what this tsprun reads: it shows all ranks
  SignalReader signals_;
  EventLoop loop_;
  Output stdout_;
  Output stderr_;
  std::optional<TerminalRelay> terminal_;  // `run` only
  FrameReader frames_;
  posix::UniqueFd own_pidfd_;
  std::vector<pid_t> strangers_;        ///< children of this process from before: of a shell, say, that has exec'd it
  std::vector<RankProcess> processes_;  ///< by rank; those of other machines stay empty
  std::vector<RankRecord> records_;     ///< by rank
  std::vector<std::uint64_t> signs_;    ///< by rank: the signs of life at the last look for stopped ones
  int living_ = 0;
  bool text_is_open_ = false;  ///< the last piece of a text had no newline at its end
  bool reading_stdout_ = false;
  bool reading_stderr_ = false;
  std::uint64_t reader_until_ns_ = 0;  // when a job that was asked to end gives up the reader of its output; 0: not asked yet

  std::uint64_t start_ns_ = 0;
  std::uint64_t last_news_ns_ = 0;
  bool said_bye_ = false;
  bool said_ways_ = false;
  bool news_ = false;  ///< a rank's end is on the board, and those who wait for it haven't been told
  bool ending_ = false;
  bool sent_term_ = false;
  bool sent_kill_ = false;
  bool hurried_ = false;  ///< a second signal came: other nodes aren't waited for
  std::uint64_t ending_since_ns_ = 0;
  int interrupted_by_ = 0;
  std::uint64_t wind_down_until_ns_ = 0;  // 0: nobody asked the ranks to end early
  int asked_to_end_by_ = 0;
  Failure failure_;
  Failure own_failure_;  // what tsprun itself would say, should the board's first failure never be completed
  int first_failing_ = -1;
  machine::OutOfMemoryKills killed_before_;  ///< when the job began
  nlohmann::ordered_json results_ = nlohmann::ordered_json::object();
};

}  // namespace tsprun::launcher
