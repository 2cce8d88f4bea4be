// Reading and writing the pages of the flight board, following chains of waits, and describing both for people.
#include "core/board/flight_board.h"

#include "transport/names.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace tsprun::detail {

namespace {

Cause cause_of(std::uint32_t value) {
  return value < 256 && is_cause(static_cast<std::uint8_t>(value)) ? static_cast<Cause>(value) : Cause::corrupt;
}

Op op_of(std::uint32_t value) { return value < kOps ? static_cast<Op>(value) : Op::barrier; }

/// Returns Op + 1; 0 if the text names no operation.
std::uint32_t number_of_op(std::string_view text) {
  const std::optional<Op> op = op_from_name(text);
  return op ? static_cast<std::uint32_t>(*op) + 1 : 0;
}

std::string text_of_op(std::uint32_t number) { return number == 0 ? std::string() : std::string(name(op_of(number - 1))); }

}  // namespace

Failure failure_of(const Error& error) {
  return {.cause = error.cause(),
          .rank = error.rank(),
          .code = 0,
          .op = error.op(),
          .sequence = static_cast<std::uint32_t>(error.sequence()),
          .detail = error.what()};
}

std::string_view name(Life life) {
  constexpr std::array<std::string_view, 5> kNames = {"unborn", "alive", "finished", "exited", "killed"};
  return name_in(kNames, life);
}

std::string Activity::describe(std::uint64_t now_ns) const {
  std::string text = fmt::format("{} #{} ({}, {} B", name(op), sequence, name(dtype), bytes);
  if (op == Op::recv && root < 0) text += ", from any rank";
  if (root >= 0)
    text += fmt::format(", {} {}", op == Op::send || op == Op::send_recv ? "to" : op == Op::recv ? "from" : "root", root);
  const bool has_tag = stream == kTagged && (op == Op::send || op == Op::recv) && source != -1;
  if (has_tag) text += source >= 0 ? fmt::format(", tag {}", source) : ", any tag";
  else if (source >= 0) text += fmt::format(", from {}", source);
  text += ")";
  if (stream == kTagged && !has_tag) text += " on a channel of its group";
  if (stream != Stream::control && stream != kTagged) text += fmt::format(" on stream {}", name(stream));
  if (waiting_for >= 0) {
    text += segment > 0 ? fmt::format(", waiting for segment {} of rank {}", segment, waiting_for)
                        : fmt::format(", waiting for rank {}", waiting_for);
    if (since_ns != 0 && now_ns > since_ns) text += fmt::format(" for {:.1f} s", static_cast<double>(now_ns - since_ns) * 1e-9);
  }
  return text;
}

FlightBoard::FlightBoard(const shm::NodeMemory& memory)
    : memory_(&memory), ranks_(static_cast<int>(memory.layout().world_size)) {}

RankPage& FlightBoard::page(int rank) const { return *reinterpret_cast<RankPage*>(memory_->page(1 + rank).data()); }

NodePage& FlightBoard::node() const { return *reinterpret_cast<NodePage*>(memory_->page(0).data()); }

namespace {

using FailureWords = decltype(FailureLines::record)::Words;

FailureWords words_of(const Failure& failure) {
  FailureWords words{.numbers = {static_cast<std::uint32_t>(failure.cause), static_cast<std::uint32_t>(failure.rank),
                                 static_cast<std::uint32_t>(failure.code), number_of_op(failure.op), failure.sequence},
                     .text = {}};
  std::memcpy(words.text.data(), failure.detail.data(), std::min(failure.detail.size(), kErrorText - 1));
  return words;
}

}  // namespace

bool FailureLines::write(const Failure& failure) { return record.write(words_of(failure)); }

void FailureLines::correct(const Failure& failure) { record.correct(words_of(failure)); }

Failure FailureLines::read() const {
  const std::optional<FailureWords> words = record.read();
  if (!words) return {};
  const auto& [cause, rank, code, op, sequence] = words->numbers;
  const auto* const text = reinterpret_cast<const char*>(words->text.data());
  return {.cause = cause_of(cause),
          .rank = static_cast<int>(rank),
          .code = static_cast<int>(code),
          .op = text_of_op(op),
          .sequence = sequence,
          .detail = {text, ::strnlen(text, kErrorText)}};
}

bool FlightBoard::abort(const Failure& failure) const {
  // A launcher repeats this call in every round: ranks that were woken once know about the failure.
  if (!node().first.write(failure)) return false;
  ring_all();
  return true;
}

void FlightBoard::correct(const Failure& failure) const { node().first.correct(failure); }

Failure FlightBoard::first_failure() const {
  constexpr std::uint64_t kPatience_ns = 100'000'000;
  Failure first = failure();
  for (const std::uint64_t ends = posix::now_ns() + kPatience_ns; first.cause == Cause::none && posix::now_ns() < ends;
       first = failure()) {
    posix::sleep_ns(200'000);
  }
  if (first.cause == Cause::none) {
    first.cause = Cause::interrupted;
    first.detail = "the job was ended; nobody noted why";
  }
  return first;
}

Life FlightBoard::life(int rank) const {
  const std::uint32_t value = page(rank).life.load();
  return value <= static_cast<std::uint32_t>(Life::killed) ? static_cast<Life>(value) : Life::killed;
}

std::uint32_t FlightBoard::join(int rank, std::uint32_t pid) const {
  std::uint32_t before = 0;
  page(rank).pid.compare_exchange_strong(before, pid);
  return before;
}

void FlightBoard::ring_all() const {
  const auto here = static_cast<int>(memory_->layout().local_ranks);
  for (int i = 0; i < here; ++i) memory_->ring(i);
}

std::uint32_t FlightBoard::pid(int rank) const { return page(rank).pid.load(relaxed); }

std::optional<Activity> FlightBoard::activity(int rank, Stream stream) const {
  const ActivityLine& line = page(rank).activity[static_cast<std::size_t>(stream)];
  if (line.busy.load(relaxed) == 0) return std::nullopt;
  Activity activity;
  activity.stream = stream;
  activity.op = op_of(line.op.load(relaxed));
  activity.sequence = line.sequence.load(relaxed);
  activity.group_sequence = line.group_sequence.load(relaxed);
  activity.signature = line.signature.load(relaxed);
  activity.group = line.group.load(relaxed);
  activity.bytes = line.bytes.load(relaxed);
  activity.dtype = static_cast<DType>(line.dtype.load(relaxed) % kDTypeCount);
  activity.reduction = static_cast<Reduction>(line.reduction.load(relaxed) % kReductionCount);
  activity.root = line.root.load(relaxed);
  activity.source = line.source.load(relaxed);
  activity.waiting_for = line.waiting_for.load(relaxed);
  activity.segment = line.segment.load(relaxed);
  activity.since_ns = line.since_ns.load(relaxed);
  activity.withheld = line.withheld.load(relaxed) != 0;
  return activity;
}

std::uint32_t FlightBoard::finished(int rank, std::uint64_t group, Stream stream) const {
  for (const FinishedLine& line : page(rank).finished) {
    const std::uint32_t last = line.group_sequence.load(std::memory_order_acquire);
    if (last == 0) return 0;
    if (line.group.load(relaxed) == group && line.stream.load(relaxed) == static_cast<std::uint32_t>(stream)) return last;
  }
  return 0;
}

std::optional<Activity> FlightBoard::activity(int rank) const {
  const std::int32_t blocked_on = page(rank).blocked_on.load(relaxed);
  if (blocked_on > 0 && blocked_on <= kQueues) {
    if (std::optional<Activity> here = activity(rank, static_cast<Stream>(blocked_on - 1))) return here;
  }
  for (int stream = 0; stream < kQueues; ++stream) {
    std::optional<Activity> here = activity(rank, static_cast<Stream>(stream));
    if (!here) continue;
    here->waiting_for = -1;  // left over from an earlier wait
    return here;
  }
  return std::nullopt;
}

int FlightBoard::connecting_to(int rank) const {
  const int peer = page(rank).connecting_to.load(relaxed) - 1;
  return life(rank) == Life::unborn && peer < ranks_ ? peer : -1;
}

int FlightBoard::waits_for(int rank) const {
  if (stopped(rank)) return -1;
  const Life now = life(rank);
  if (now == Life::unborn) return connecting_to(rank);
  if (now != Life::alive) return -1;
  const std::optional<Activity> here = activity(rank);
  return here && here->waiting_for < ranks_ ? here->waiting_for : -1;
}

Failure FlightBoard::first_error(int rank) const {
  Failure failure = page(rank).error.read();
  if (failure.cause != Cause::none && (failure.rank < 0 || failure.rank >= ranks_)) failure.rank = rank;
  return failure;
}

void FlightBoard::note_first_error(int rank, const Failure& error) const {
  Failure mine = error;
  if (mine.rank < 0) mine.rank = rank;
  if (!op_from_name(mine.op)) mine.sequence = 0;
  page(rank).error.write(mine);
}

void FlightBoard::note_fault(int rank, const FaultRecord& record) const {
  RankPage& to = page(rank);
  to.fault_counts[record.fault].fetch_add(1, relaxed);
  const std::uint64_t used = to.fault_records.load(relaxed);
  if (used >= kFaultLines) return;
  FaultLine& line = to.fault_lines[used];
  line.when_ns.store(record.when_ns, relaxed);
  line.step.store(record.step, relaxed);
  line.sequence.store(record.sequence, relaxed);
  line.peer.store(record.peer, relaxed);
  line.fault.store(static_cast<std::uint32_t>(record.fault), relaxed);
  line.op.store(number_of_op(record.op), relaxed);
  to.fault_records.store(used + 1, std::memory_order_release);
}

void FlightBoard::note_loss(int rank, std::uint64_t step, std::uint64_t steps, double loss) const {
  ProgressLine& line = page(rank).progress;
  line.steps.store(steps, relaxed);
  line.loss.store(std::bit_cast<std::uint64_t>(loss), relaxed);
  line.loss_of.store(step, relaxed);
}

ProgressRecord FlightBoard::progress(int rank) const {
  const ProgressLine& line = page(rank).progress;
  ProgressRecord record{.step = line.step.load(relaxed),
                        .steps = line.steps.load(relaxed),
                        .loss = std::nullopt,
                        .memory = line.memory.load(relaxed),
                        .memory_peak = line.memory_peak.load(relaxed)};
  if (line.loss_of.load(relaxed) != 0) record.loss = std::bit_cast<double>(line.loss.load(relaxed));
  return record;
}

std::vector<LinkRecord> FlightBoard::link_records(int rank) const {
  std::vector<LinkRecord> records;
  for (const LinkLine& line : page(rank).links) {
    const int from = line.from.load(relaxed) - 1;
    if (from < 0 || from >= ranks_) continue;
    records.push_back({.from = from,
                       .messages = line.messages.load(relaxed),
                       .bytes = line.bytes.load(relaxed),
                       .pending_ns = line.pending_ns.load(relaxed),
                       .fastest = line.fastest.load(relaxed)});
  }
  std::ranges::sort(records, {}, &LinkRecord::from);
  return records;
}

std::vector<FaultRecord> FlightBoard::fault_records(int rank) const {
  const RankPage& from = page(rank);
  const std::uint64_t used = std::min<std::uint64_t>(from.fault_records.load(std::memory_order_acquire), kFaultLines);
  std::vector<FaultRecord> records;
  for (std::size_t i = 0; i < used; ++i) {
    const FaultLine& line = from.fault_lines[i];
    records.push_back({.fault = line.fault.load(relaxed),
                       .when_ns = line.when_ns.load(relaxed),
                       .step = line.step.load(relaxed),
                       .op = text_of_op(line.op.load(relaxed)),
                       .sequence = line.sequence.load(relaxed),
                       .peer = line.peer.load(relaxed)});
  }
  return records;
}

std::uint64_t FlightBoard::fault_count(std::size_t number) const {
  std::uint64_t count = 0;
  for (int rank = 0; rank < ranks_; ++rank) count += page(rank).fault_counts[number].load(relaxed);
  return count;
}

FlightBoard::Chain FlightBoard::wait_chain(int rank) const {
  Chain chain;
  int here = rank;
  for (;;) {
    if (const auto seen = std::find(chain.ranks.begin(), chain.ranks.end(), here); seen != chain.ranks.end()) {
      chain.cycle = true;
      return chain;
    }
    chain.ranks.push_back(here);
    here = waits_for(here);
    if (here < 0) return chain;
  }
}

FlightBoard::Chain FlightBoard::up_to_silent(Chain circle, std::uint64_t since_ns) const {
  const auto silent = std::find_if(circle.ranks.begin(), circle.ranks.end(), [&](int rank) {
    const std::uint64_t sign = page(rank).last_sign_ns.load(relaxed);
    return sign != 0 && sign < since_ns;
  });
  if (!circle.cycle || silent == circle.ranks.end()) return circle;
  circle.ranks.erase(silent + 1, circle.ranks.end());
  circle.cycle = false;
  return circle;
}

std::string FlightBoard::describe(const Chain& chain, std::uint64_t now_ns) const {
  std::string text;
  for (const int rank : chain.ranks) {
    std::optional<Activity> here = activity(rank);
    const bool is_stopped = stopped(rank);
    if (is_stopped && here) here->waiting_for = -1;
    if (!text.empty()) text += "; ";
    text += fmt::format("rank {} is {}", rank, is_stopped ? "stopped, " : "");
    if (here) text += "in " + here->describe(now_ns);
    else if (const int peer = connecting_to(rank); peer >= 0) text += fmt::format("connecting to rank {}", peer);
    else text += life(rank) == Life::unborn ? "not in the job yet" : "outside any operation";
  }
  return text;
}

}  // namespace tsprun::detail
