// `tsprun status PID`: prints the flight board of a running job, read from the launcher's node memory through /proc.
#include "core/board/flight_board.h"
#include "launcher/commands/command.h"
#include "launcher/processes.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "launcher/verdict.h"
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

/// Returns whether a job's ranks use a memory. `simulate` and `plan` have others, for ranks that they play: nobody waits in them.
bool is_of_a_job(const shm::NodeMemory& memory) {
  try {
    return bootstrap::job_of(memory).timeout_ns != 0;
  } catch (const Error&) {
    return false;  // none is described there
  }
}

/// Attaches to the node memory of another process, found by the name that /proc shows for its memfd. Throws Error(refused).
shm::NodeMemory node_memory_of(int pid) {
  const std::filesystem::path folder = fmt::format("/proc/{}/fd", pid);
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::permission_denied) {
    refuse(fmt::format("status {}: the process belongs to another user; only its owner may look", pid));
  }
  if (error) refuse(fmt::format("status {}: {}; try a PID that `pgrep tsprun` prints", pid, error.message()));
  bool plays = false;
  for (const auto& entry : entries) {
    std::error_code gone;
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
    if (gone || target != "/memfd:tsprun (deleted)") continue;
    posix::UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    if (!file) throw system_error(Cause::refused, fmt::format("status {}: opening its node memory", pid), errno);
    shm::NodeMemory memory = shm::NodeMemory::attach(std::move(file));
    if (is_of_a_job(memory)) return memory;
    plays = true;
  }
  if (plays)
    refuse(
        fmt::format("status {}: this process runs no ranks, but plays them, as `simulate` and `plan` do; there is no board "
                    "of them",
                    pid));
  refuse(fmt::format("status {}: this process holds no job; try a PID that `pgrep tsprun` prints", pid));
}

ordered_json board_json(const FlightBoard& board, std::uint64_t now_ns) {
  ordered_json ranks = ordered_json::array();
  for (int rank = 0; rank < board.ranks(); ++rank) {
    const RankPage& page = board.page(rank);
    const std::uint64_t last_sign = page.last_sign_ns.load(std::memory_order_relaxed);
    ordered_json activities = ordered_json::array();
    for (int stream = 0; stream < kQueues; ++stream) {
      const std::optional<Activity> activity = board.activity(rank, static_cast<Stream>(stream));
      if (!activity) continue;
      activities.push_back({{"stream", std::string(tsprun::name(activity->stream))},
                            {"op", std::string(tsprun::name(activity->op))},
                            {"seq", activity->sequence},
                            {"bytes", activity->bytes},
                            {"for", activity->waiting_for >= 0 ? ordered_json(activity->waiting_for) : ordered_json(nullptr)},
                            {"segment", activity->segment > 0 ? ordered_json(activity->segment) : ordered_json(nullptr)}});
    }
    ranks.push_back(
        {{"rank", rank},
         {"pid", board.pid(rank)},
         {"life", life_now(board, rank)},
         // A sign may have come since `now_ns`.
         {"seconds_since_sign", last_sign == 0 ? ordered_json(nullptr)
                                               : ordered_json(static_cast<double>(now_ns - std::min(now_ns, last_sign)) * 1e-9)},
         {"activities", std::move(activities)}});
  }
  return ranks;
}

class Status : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "status",
            .help = "the flight board of a running job: what each rank does and whom it waits for",
            .examples = {"tsprun status 4711", "tsprun status $(pgrep -o tsprun)"},
            .ranks = RankUse::none,
            .multiplies = false};
  }

  void declare(OptionTable& table) override {
    table.add("PID", pid_, "process of a running tsprun", Trait::computed | Trait::required);
  }

  void validate(const GlobalOptions&) override {
    pid_ = static_cast<int>(parse_integer("status", pid_.text, 1, std::numeric_limits<int>::max()));
    if (!posix::process_stat(pid_)) {
      refuse(fmt::format("status {}: there is no such process; try a PID that `pgrep tsprun` prints", pid_));
    }
  }

  int run(const GlobalOptions&, Report& report) override {
    const shm::NodeMemory memory = node_memory_of(pid_);
    const FlightBoard board(memory);
    const std::uint64_t now = posix::now_ns();
    print("{} ranks, deadline of waits {:.0f} s\n{}", board.ranks(),
          static_cast<double>(bootstrap::job_of(memory).timeout_ns) * 1e-9, print_board(board, now));
    report.root()["status"] = board_json(board, now);
    return 0;
  }

 private:
  Given<int> pid_;
};

}  // namespace

std::unique_ptr<Command> make_status() { return std::make_unique<Status>(); }

}  // namespace tsprun::detail::launcher
