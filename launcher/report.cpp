// Builds the report's common keys, and keeps a file that says that the run isn't over until it is.
#include "launcher/report.h"

#include "core/kernels/level.h"
#include "launcher/link_choices.h"
#include "launcher/model/trace_file.h"
#include "launcher/outputs.h"
#include "transport/cause.h"
#include "transport/machine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::launcher {

using nlohmann::ordered_json;

namespace {

constexpr const char* kSteps = "steps";

/// Returns the processor's name, as the kernel shows it; null: it doesn't.
ordered_json processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return nullptr;
}

/// Returns the time, such as "2026-03-01T09:30:00Z".
std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace

Report::Report(const std::string& path) : path_(path), wanted_(!path.empty()), root_(ordered_json::object()) {
  if (path_.empty()) return;
  if (path_ == "-") {
    file_ = posix::UniqueFd(::fcntl(lent_standard_output(), F_DUPFD_CLOEXEC, 3));
    if (!file_) throw system_error(Cause::refused, "--json -: stdout", errno);
    return;
  }
  open();
  say_unfinished();
}

void Report::open() {
  // O_NONBLOCK only while the file is opened: a FIFO without a reader would keep tsprun waiting for one.
  file_ = posix::UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file_ && errno == ENXIO)
    throw Error(Cause::refused, fmt::format("--json {}: a FIFO that nobody reads; start its reader first", path_));
  if (!file_) {
    throw system_error(Cause::refused,
                       fmt::format("--json {}: the file can't be written; name one in a folder that exists", path_), errno);
  }
  ::fcntl(file_.get(), F_SETFL, 0);
  struct stat status {};
  regular_ = ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
}

Report Report::of_one_job(const Report& whole) {
  Report part("");
  part.wanted_ = whole.wanted_;
  return part;
}

/// Writes what the file holds until the run is over.
void Report::say_unfinished() {
  if (!regular_) return;
  const Failure unfinished{.cause = Cause::interrupted,
                           .detail = "the run isn't over: tsprun still works, or was killed before it could write its report"};
  ordered_json before = root_;
  before["failure"] = failure_json(unfinished, {}, ranks_, nodes_);
  unfinished_ = before.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  store([&](const Take& take) { take(unfinished_); });
}

/// Returns whether the file holds another report than this one's unfinished form.
bool Report::is_others() const {
  std::ifstream file(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text != unfinished_;
}

void Report::begin(const std::string& command, const GlobalOptions& global, bool has_ranks) {
  root_["command"] = command;
  root_["origin"] = origin_json(global);
  if (global.several_machines) node_ = global.node_rank.value;
  ranks_ = global.ranks;
  nodes_ = global.nodes;
  if (has_ranks) {
    root_["layout"] = layout_json(global.layout);
    root_["ranks"] = global.ranks.value;
    root_["nodes"] = global.nodes.value;
    root_["dtype"] = nullptr;
    root_["verify"] = global.verify;
    root_["reassociate"] = global.reassociate;
  }
  root_["kernels"] = std::string(kernels::name(kernels::best_level()));
  if (has_ranks) {
    ordered_json transports = ordered_json::array();
    if (wanted_) transports = LinkChoices(global).json();
    root_["transports"] = std::move(transports);
  }
  root_["failure"] = nullptr;
  say_unfinished();
}

void Report::begin_steps() {
  if (!wanted_) return;
  steps_.emplace(path_);
  root_[kSteps] = nullptr;  // its place among the keys
}

/// Hands the document on, piece by piece: the steps may be more than fit into memory.
void Report::print(const Take& take) const {
  std::string_view before = "{\n";
  for (const auto& [key, value] : root_.items()) {
    take(before);
    before = ",\n";
    if (key == kSteps && steps_) {
      take(" \"steps\": ");
      steps_->print(take);
      continue;
    }
    // A document of this key alone, without its braces.
    const std::string text = ordered_json{{key, value}}.dump(1, ' ', false, ordered_json::error_handler_t::replace);
    take(std::string_view(text).substr(2, text.size() - 4));
  }
  take("\n}\n");
}

void Report::set_failure(const Failure& failure, const std::vector<Waiting>& waiting) {
  root_["failure"] = failure_json(failure, waiting, ranks_, nodes_);
}

void Report::note_faults(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns) {
  if (outcomes.empty()) return;
  for (std::size_t i = 0; i < outcomes.size(); ++i) struck_faults_ |= std::uint64_t{outcomes[i].times != 0} << i;
  const auto earlier = root_.find("faults");
  root_["faults"] = faults_json(outcomes, start_ns, earlier == root_.end() ? ordered_json(nullptr) : ordered_json(*earlier));
}

std::string Report::write() {
  if (!file_) return {};
  // The failure comes last among the keys.
  ordered_json failure = root_.contains("failure") ? root_["failure"] : ordered_json(nullptr);
  root_.erase("failure");
  root_["failure"] = std::move(failure);

  const auto whole = [this](const Take& take) { print(take); };
  if (steps_ && !steps_->trouble().empty()) spdlog::error("--json {}: {}", path_, steps_->trouble());
  if (!regular_ || !node_) return store(whole);
  // While a node writes, others don't look. They write soon, so whoever holds the lock for longer isn't one of them.
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0; ++tries) posix::sleep_ns(20'000'000);
  if (*node_ == 0 || !is_others()) return store(whole);
  const std::string shared = std::exchange(path_, trace_of_node(path_, *node_));
  try {
    open();
  } catch (const Error& error) {
    return error.what();
  }
  spdlog::info("--json {}: another node's report is in it; this one is in {}", shared, path_);
  return store(whole);
}

/// Replaces the file's content by what `contents` hands on. Returns why that failed; empty: it succeeded. The old content is cut
/// off last, so that the file is never empty.
std::string Report::store(const std::function<void(const Take&)>& contents) {
  if (regular_) ::lseek(file_.get(), 0, SEEK_SET);
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  std::string piece;
  std::uint64_t written = 0;
  int error = 0;
  const auto write_piece = [&] {
    if (error == 0) error = posix::write_all(file_.get(), piece);
    written += piece.size();
    piece.clear();
  };
  std::string trouble;
  try {
    contents([&](std::string_view text) {
      piece += text;
      if (piece.size() >= kPiece) write_piece();
    });
  } catch (const Error& failure) {
    trouble = failure.what();  // the steps couldn't be read again
  }
  write_piece();
  // A failed write leaves no mixture of two reports. Devices and pipes can't be cut, and stdout may hold what came before.
  const bool cut = !regular_ || ::ftruncate(file_.get(), error != 0 || !trouble.empty() ? 0 : static_cast<off_t>(written)) == 0;
  if (error != 0) return fmt::format("--json {}: writing the report: {}", path_, std::strerror(error));
  if (!trouble.empty()) return fmt::format("--json {}: {}", path_, trouble);
  if (!cut) return fmt::format("--json {}: cutting off what it held before: {}", path_, std::strerror(errno));
  return {};
}

ordered_json origin_json(const GlobalOptions& global) {
  ordered_json options = ordered_json::array();
  for (const auto& [name, value] : global.typed) options.push_back({{"name", name}, {"value", value}});
  return {{"version", TSP_VERSION},           {"began", time_now()},
          {"host", machine::host_name()},     {"processor", processor_name()},
          {"cores", machine::usable_cores()}, {"words", global.words},
          {"program", global.program},        {"options", std::move(options)}};
}

Failure refusal(const std::string& detail) { return {.cause = Cause::refused, .detail = detail}; }

ordered_json failure_json(const Failure& failure, const std::vector<Waiting>& waiting, int ranks, int nodes) {
  ordered_json json;
  json["rank"] = failure.rank >= 0 ? ordered_json(failure.rank) : ordered_json(nullptr);
  const bool known = failure.rank >= 0 && failure.rank < ranks;
  json["node"] = nodes == 1 ? ordered_json(0) : known ? ordered_json(node_of(ranks, nodes, failure.rank)) : ordered_json(nullptr);
  json["kind"] = std::string(name(failure.cause));
  json["signal"] = failure.cause == Cause::killed || (failure.cause == Cause::interrupted && failure.code > 0)
                       ? ordered_json(failure.code)
                       : ordered_json(nullptr);
  json["exit_code"] = failure.cause == Cause::exited ? ordered_json(failure.code) : ordered_json(nullptr);
  json["op"] = failure.op.empty() ? ordered_json(nullptr) : ordered_json(failure.op);
  json["seq"] = failure.op.empty() ? ordered_json(nullptr) : ordered_json(failure.sequence);
  json["detail"] = failure.detail;
  ordered_json list = ordered_json::array();
  for (const Waiting& each : waiting) {
    const bool connecting = each.op.empty();
    list.push_back({{"rank", each.rank},
                    {"op", connecting ? ordered_json(nullptr) : ordered_json(each.op)},
                    {"seq", connecting ? ordered_json(nullptr) : ordered_json(each.sequence)},
                    {"for", each.waits_for}});
  }
  json["waiting"] = std::move(list);
  return json;
}

ordered_json layout_json(const Layout& layout) {
  ordered_json json = ordered_json::object();
  for (const Axis& axis : layout.axes) json[std::string(name(axis.kind))] = axis.degree;
  return json;
}

}  // namespace tsprun::detail::launcher
