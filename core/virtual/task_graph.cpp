// Turns what player and transport tell into tasks.
#include "core/virtual/task_graph.h"

#include <algorithm>
#include <cmath>

namespace tsprun::detail {

std::uint32_t TaskGraph::add(const PlayedTask& task, std::span<const std::uint32_t> needs) {
  std::vector<std::uint32_t>& all = written_.all_needs;
  written_.tasks.push_back(task);
  written_.tasks.back().needs = all.size();
  all.insert(all.end(), needs.begin(), needs.end());
  for (const std::uint32_t need : needs) is_needed_[need] = true;
  is_needed_.push_back(false);
  return static_cast<std::uint32_t>(written_.tasks.size() - 1);
}

/// Returns the only one of these tasks, which then stands for all of them; kNone if there is none.
std::uint32_t TaskGraph::joined(std::vector<std::uint32_t>& tasks, std::uint8_t row) {
  if (tasks.size() > 1) tasks = {add({.kind = PlayedTask::Kind::calc, .row = row}, tasks)};
  return tasks.empty() ? kNone : tasks.front();
}

void TaskGraph::kernel(double seconds) {
  joined(compute_, PlayedTask::kCompute);
  compute_ = {add({.amount = static_cast<std::uint64_t>(std::llround(seconds * 1e9))}, compute_)};
}

void TaskGraph::waited(std::uint8_t stream, std::uint64_t number) {
  if (number == 0) return;
  Line& line = head(static_cast<Stream>(stream));
  const std::uint32_t end = line.ends[line.before + number - 1];
  if (end != kNone && std::ranges::find(compute_, end) == compute_.end()) compute_.push_back(end);
}

void TaskGraph::begin_again() {
  for (Line& line : lines_) line.before = line.posted_after.size();
}

/// Returns a stream whose head is the operation that runs now.
TaskGraph::Line& TaskGraph::head(Stream stream) {
  Line& line = lines_[static_cast<std::size_t>(stream)];
  const auto row = static_cast<std::uint8_t>(1 + static_cast<int>(stream));
  const std::uint64_t over = engine_.completed(stream);
  while (line.ends.size() < over || line.begun == line.ends.size()) {
    if (line.begun > line.ends.size()) {
      end_operation(line, row);
      continue;
    }
    if (line.begun == line.posted_after.size()) break;  // nothing is posted
    line.seen.clear();
    if (const std::uint32_t after = line.posted_after[line.begun]; after != kNone) line.seen.push_back(after);
    if (!line.ends.empty() && line.ends.back() != kNone) line.seen.push_back(line.ends.back());
    ++line.begun;
  }
  return line;
}

/// Notes the end of the operation at the head: it is over when all of its messages are.
void TaskGraph::end_operation(Line& line, std::uint8_t row) {
  std::vector<std::uint32_t> last;
  for (const std::uint32_t message : line.messages) {
    if (!is_needed_[message]) last.push_back(message);
  }
  line.ends.push_back(joined(line.messages.empty() ? line.seen : last, row));
  line.messages.clear();
}

void TaskGraph::message(PlayedTask::Kind kind, LaneId lane, Ticket ticket, std::size_t bytes) {
  Line& line = head(lane.stream);
  const auto row = static_cast<std::uint8_t>(1 + static_cast<int>(lane.stream));
  joined(line.seen, row);
  const auto tag = static_cast<std::uint32_t>(ticket * kQueues + static_cast<std::uint64_t>(lane.stream));
  const std::uint32_t task = add({.kind = kind, .row = row, .peer = lane.peer, .tag = tag, .amount = bytes}, line.seen);
  line.messages.push_back(task);
  under_way_.emplace(Key(kind, lane, ticket), task);
}

void TaskGraph::done(PlayedTask::Kind kind, LaneId lane, Ticket ticket) {
  const auto at = under_way_.find(Key(kind, lane, ticket));
  if (at == under_way_.end()) return;  // it was seen before
  Line& line = head(lane.stream);
  // What the message needed is over since it is.
  const std::span<const std::uint32_t> before = written_.needs(at->second);
  std::erase_if(line.seen, [&](std::uint32_t task) { return std::ranges::find(before, task) != before.end(); });
  line.seen.push_back(at->second);
  under_way_.erase(at);
}

}  // namespace tsprun::detail
