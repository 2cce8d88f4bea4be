// `tsprun status PID`: prints the flight board of a running job, read from the launcher's node memory through /proc; with
// --follow again and again, until the job ends.
#include "core/board/flight_board.h"
#include "launcher/columns.h"
#include "launcher/commands/command.h"
#include "launcher/output.h"
#include "launcher/processes.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "launcher/table.h"
#include "launcher/verdict.h"
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <limits>
#include <optional>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
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

/// Memory of jobs that a process holds.
struct HeldJob {
  std::optional<shm::NodeMemory> memory;  ///< of a job whose ranks run
  bool plays = false;                     ///< there is memory of ranks that are played
};

bool is_same_file(int one, int other) {
  struct stat of_one {};
  struct stat of_other {};
  return ::fstat(one, &of_one) == 0 && ::fstat(other, &of_other) == 0 && of_one.st_ino == of_other.st_ino &&
         of_one.st_dev == of_other.st_dev;
}

/// Finds the node memory of a job in another process, by the name that /proc shows for its memfd, but not the `known` one, a
/// descriptor. A process that ends meanwhile holds none. Throws Error(refused) if the process can't be looked into.
HeldJob job_of_process(int pid, int known = -1) {
  std::error_code error;
  std::filesystem::directory_iterator entries(fmt::format("/proc/{}/fd", pid), error);
  if (error == std::errc::permission_denied) {
    refuse(fmt::format("status {}: the process belongs to another user; only its owner may look", pid));
  }
  if (error) refuse(fmt::format("status {}: {}; try a PID that `pgrep tsprun` prints", pid, error.message()));
  HeldJob held;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::error_code gone;
    const std::filesystem::path target = std::filesystem::read_symlink(entries->path(), gone);
    if (gone || target != "/memfd:tsprun (deleted)") continue;
    posix::UniqueFd file(::open(entries->path().c_str(), O_RDWR | O_CLOEXEC));
    if (!file) throw system_error(Cause::refused, fmt::format("status {}: opening its node memory", pid), errno);
    if (known >= 0 && is_same_file(file.get(), known)) continue;
    shm::NodeMemory memory = shm::NodeMemory::attach(std::move(file));
    held.plays = !is_of_a_job(memory);
    if (held.plays) continue;
    held.memory = std::move(memory);
    break;
  }
  return held;
}

/// Attaches to the node memory of a process's job. Throws Error(refused).
shm::NodeMemory node_memory_of(int pid) {
  HeldJob held = job_of_process(pid);
  if (held.memory) return std::move(*held.memory);
  if (held.plays)
    refuse(
        fmt::format("status {}: this process runs no ranks, but plays them, as `simulate` and `plan` do; there is no board "
                    "of them",
                    pid));
  refuse(fmt::format("status {}: this process holds no job; try a PID that `pgrep tsprun` prints", pid));
}

/// Returns the node memory of the job that a process runs now; none if it is `known`, or there is none at present.
std::optional<shm::NodeMemory> newer_job(int pid, const shm::NodeMemory& known) {
  try {
    return job_of_process(pid, known.descriptor()).memory;
  } catch (const Error&) {  // between two jobs, or behind the last
    return std::nullopt;
  }
}

ordered_json board_json(const FlightBoard& board, std::uint64_t now_ns) {
  ordered_json ranks = ordered_json::array();
  for (int rank = 0; rank < board.ranks(); ++rank) {
    const RankPage& page = board.page(rank);
    const std::uint64_t last_sign = page.last_sign_ns.load(std::memory_order_relaxed);
    const ProgressRecord progress = board.progress(rank);
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
         {"step", progress.step > 0 ? ordered_json(progress.step) : ordered_json(nullptr)},
         {"steps", progress.steps > 0 ? ordered_json(progress.steps) : ordered_json(nullptr)},
         {"loss", progress.loss ? ordered_json(*progress.loss) : ordered_json(nullptr)},
         {"memory_bytes", progress.memory},
         {"memory_peak_bytes", progress.memory_peak},
         {"activities", std::move(activities)}});
  }
  return ranks;
}

/// Returns the time of day: "19:42:45".
std::string clock_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 16> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%H:%M:%S", ::localtime_r(&now, &parts))};
}

/// Prints boards one after another: on a terminal each in the last one's place, if that is still on the screen.
class BoardScreen {
 public:
  void show(const std::string& text) {
    if (repaints_ && lines_ > 0 && lines_ < rows()) print("\033[{}F\033[J", lines_);
    else if (lines_ > 0) print("\n");
    lines_ = static_cast<std::size_t>(std::ranges::count(text, '\n'));
    print_text(text);
    show_printed();
  }

 private:
  static std::size_t rows() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
  }
  bool repaints_ = redraws_lines(STDOUT_FILENO);
  std::size_t lines_ = 0;  ///< of the last
};

class Status : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "status",
            .help = "the flight board of a running job: what each rank does and whom it waits for",
            .examples = {"tsprun status 4711", "tsprun status --follow $(pgrep -o tsprun)"},
            .ranks = RankUse::none,
            .multiplies = false};
  }

  void declare(OptionTable& table) override {
    table.add("PID", pid_, "process of a running tsprun", Trait::computed | Trait::required);
    table.add("--follow", follow_, "print the board each second, on a terminal in one place, until the job ends");
  }

  void validate(const GlobalOptions&) override {
    pid_ = static_cast<int>(parse_integer("status", pid_.text, 1, std::numeric_limits<int>::max()));
    if (!posix::process_stat(pid_)) {
      refuse(fmt::format("status {}: there is no such process; try a PID that `pgrep tsprun` prints", pid_));
    }
  }

  int run(const GlobalOptions&, Report& report) override {
    const posix::UniqueFd process = follow_ ? open_process(pid_) : posix::UniqueFd();
    std::optional<shm::NodeMemory> memory(node_memory_of(pid_));  // stays readable when the job has ended
    BoardScreen screen;
    for (bool over = !follow_;;) {
      // A process may run several jobs, one after another, such as restarts.
      if (follow_)
        if (std::optional<shm::NodeMemory> newer = newer_job(pid_, *memory)) memory = std::move(newer);
      const FlightBoard board(*memory);
      const std::uint64_t now = posix::now_ns();
      const std::string when = follow_ ? fmt::format(", {} at {}", over ? "ended" : "running", clock_text()) : "";
      const std::string head = fmt::format("{} ranks, deadline of waits {:.0f} s{}", board.ranks(),
                                           static_cast<double>(bootstrap::job_of(*memory).timeout_ns) * 1e-9, when);
      const std::size_t columns = table_columns();
      screen.show(fmt::format("{}\n{}", fmt::join(wrapped(head, columns, "  "), "\n"), print_board(board, now, columns)));
      report.root()["status"] = board_json(board, now);
      if (over || lost_printed()) return 0;
      over = ends_within_a_second(process);
    }
  }

 private:
  /// Waits a second, or until the process ends. Returns whether it has.
  bool ends_within_a_second(const posix::UniqueFd& process) const {
    constexpr int kBetween_ms = 1000;
    pollfd ended{.fd = process ? process.get() : -1, .events = POLLIN, .revents = 0};
    if (::poll(&ended, 1, kBetween_ms) > 0) return true;
    return !process && !posix::process_stat(pid_);
  }

  Given<int> pid_;
  bool follow_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status() { return std::make_unique<Status>(); }

}  // namespace tsprun::detail::launcher
