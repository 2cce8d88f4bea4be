// Carries out faults of the rank itself (kill, stall, oom), and records every hit on the flight board and stderr.
#include "core/fault/rank_faults.h"

#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <string>
#include <unistd.h>
#include <utility>

namespace tsprun::detail {

namespace {

Op op_of(const fault::Spec& spec) {
  if (spec.op.empty()) return Op::barrier;
  const std::optional<Op> op = op_from_name(spec.op);
  if (op) return *op;
  std::vector<std::string> known;
  for (int i = 0; i < kOps; ++i) known.emplace_back(name(static_cast<Op>(i)));
  throw Error(Cause::refused, fmt::format("--fault {}: there is no operation '{}'{}; there are {}", spec.text, spec.op,
                                          did_you_mean(spec.op, known), fmt::join(known, ", ")));
}

}  // namespace

void check_faults(std::span<const fault::Spec> faults) {
  if (faults.size() > kMaxFaults) {
    throw Error(Cause::refused, fmt::format("--fault was given {} times: at most {} work", faults.size(), kMaxFaults));
  }
  for (const fault::Spec& spec : faults) op_of(spec);
}

RankFaults::RankFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank, Heap& heap, const FlightBoard& board)
    : rank_(rank), heap_(&heap), board_(board), messages_(faults, struck, rank) {
  check_faults(faults);
  messages_.strikes().on_event = [this](const fault::FaultEvent& event) { note_event(event); };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    texts_.push_back(faults[i].text);
    const bool due = (struck >> i & 1) == 0 && faults[i].strikes_rank() && faults[i].rank == rank;
    if (due) waiting_.push_back({faults[i], i, op_of(faults[i])});
  }
}

void RankFaults::at_step(std::uint64_t step) {
  step_ = step;
  for (const std::size_t cut : messages_.at_step(step)) {
    note(cut, {.fault = cut, .step = step, .op = {}}, fmt::format("step {}", step));
  }
  strike_those([&](const Fault& fault) { return fault.spec.step == step; });
}

void RankFaults::at_operation(Op op, std::uint64_t sequence) {
  strike_those([&](const Fault& fault) { return !fault.spec.op.empty() && fault.op == op && fault.spec.sequence == sequence; });
}

void RankFaults::strike_those(const std::function<bool(const Fault&)>& due) {
  std::vector<Fault> struck;
  std::ranges::copy_if(waiting_, std::back_inserter(struck), due);
  if (struck.empty()) return;
  std::erase_if(waiting_, due);
  for (const Fault& fault : struck) strike(fault);
}

void RankFaults::at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::uint32_t sequence,
                         std::span<const int> members) {
  if (!messages_.any()) return;
  posted_[{stream, number}] = {info.op, sequence};
  messages_.at_post(stream, number, info, members);
}

void RankFaults::at_begin(Stream stream, std::uint64_t number) {
  head_[static_cast<std::size_t>(stream)] = number;
  messages_.at_begin(stream, number);
}

void RankFaults::at_pause() { messages_.at_pause(kTagged, std::exchange(head_[static_cast<std::size_t>(kTagged)], 0)); }

void RankFaults::at_end(Stream stream, std::uint64_t number) {
  posted_.erase({stream, number});
  head_[static_cast<std::size_t>(stream)] = 0;
  messages_.at_end(stream, number);
}

void RankFaults::note_event(const fault::FaultEvent& event) {
  FaultRecord where{.fault = event.fault, .step = step_, .op = {}, .peer = event.from};
  std::string place = "outside an operation";
  if (const auto at = posted_.find({event.stream, head_[static_cast<std::size_t>(event.stream)]}); at != posted_.end()) {
    where.op = name(at->second.op);
    where.sequence = at->second.sequence;
    place = fmt::format("{} #{}", where.op, where.sequence);
  }
  note(event.fault, where, fmt::format("{} (a message of {} B from rank {}: {})", place, event.bytes, event.from, event.what));
}

/// Records a hit on the board; the first of each fault also in a line on stderr.
void RankFaults::note(std::size_t fault, const FaultRecord& where, const std::string& what) {
  FaultRecord record = where;
  record.when_ns = posix::now_ns();
  board_.note_fault(rank_, record);
  const std::uint64_t bit = std::uint64_t{1} << fault;
  if ((said_ & bit) != 0) return;
  said_ |= bit;
  const std::string line = fmt::format("rank {}: injected --fault {} at {}\n", rank_, texts_[fault], what);
  // One unbuffered write: the process may be killed right after it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void RankFaults::strike(const Fault& fault) {
  const fault::Spec& spec = fault.spec;
  const FaultRecord where{.fault = fault.number,
                          .step = step_,
                          .op = spec.op,
                          .sequence = spec.op.empty() ? 0 : static_cast<std::uint32_t>(spec.sequence)};
  note(fault.number, where, spec.op.empty() ? fmt::format("step {}", spec.step) : fmt::format("{} #{}", spec.op, spec.sequence));
  switch (spec.kind) {
    case fault::Kind::kill: ::kill(::getpid(), SIGKILL); break;
    case fault::Kind::stall: stall(spec.seconds); break;
    case fault::Kind::oom: heap_->fail_next(fmt::format("--fault {}", spec.text)); break;
    default: break;
  }
}

/// Sleeps without a sign of life. Ends early if the job fails meanwhile.
void RankFaults::stall(double seconds) {
  constexpr std::uint64_t kLookNs = 10'000'000;
  const std::uint64_t end = posix::now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (posix::now_ns() < end && !board_.aborted()) posix::sleep_ns(kLookNs);
}

}  // namespace tsprun::detail
