#include "core/fault/rank_faults.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <string>
#include <time.h>
#include <unistd.h>

namespace tsp {

namespace {

Op op_of(const fault::Spec& spec) {
  if (spec.op.empty()) return Op::barrier;
  const std::optional<Op> op = op_from_name(spec.op);
  if (op) return *op;
  std::string known;
  for (int i = 0; i < kOps; ++i) known += fmt::format("{}{}", i == 0 ? "" : ", ", name(static_cast<Op>(i)));
  throw Error(Cause::refused, fmt::format("--fault {}: there is no operation '{}'; there are {}", spec.text, spec.op, known));
}

}  // namespace

void check_faults(std::span<const fault::Spec> faults) {
  if (faults.size() > kMaxFaults) {
    throw Error(Cause::refused, fmt::format("--fault was given {} times: at most {} work", faults.size(), kMaxFaults));
  }
  for (const fault::Spec& spec : faults) {
    if (spec.kind == fault::Kind::corrupt || spec.kind == fault::Kind::drop || spec.kind == fault::Kind::disconnect) {
      throw Error(Cause::refused,
                  fmt::format("--fault {}: this version injects kill, stall, oom, delay and slow; try delay:from={},to={},ms=20",
                              spec.text, spec.from, spec.to));
    }
    op_of(spec);
  }
}

RankFaults::RankFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank, Heap& heap, const FlightBoard& board)
    : rank_(rank), heap_(&heap), board_(board) {
  check_faults(faults);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const bool due = (struck >> i & 1) == 0 && faults[i].strikes_rank() && faults[i].rank == rank;
    if (due) waiting_.push_back({faults[i], i, op_of(faults[i])});
  }
}

void RankFaults::at_step(std::uint64_t step) {
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

void RankFaults::strike(const Fault& fault) {
  board_.note_fault(rank_, fault.number);
  const fault::Spec& spec = fault.spec;
  const std::string where = spec.op.empty() ? fmt::format("step {}", spec.step) : fmt::format("{} #{}", spec.op, spec.sequence);
  const std::string line = fmt::format("rank {}: injected --fault {} at {}\n", rank_, spec.text, where);
  // One write, past all buffers: what follows may be the end.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  switch (spec.kind) {
    case fault::Kind::kill: ::kill(::getpid(), SIGKILL); break;
    case fault::Kind::stall: stall(spec.seconds); break;
    case fault::Kind::oom: heap_->fail_next(fmt::format("--fault {}", spec.text)); break;
    default: break;
  }
}

/// No sign of life. Ends early if the job has failed meanwhile.
void RankFaults::stall(double seconds) {
  constexpr long kLookNs = 10'000'000;
  const std::uint64_t end = posix::now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (posix::now_ns() < end && !board_.aborted()) {
    const timespec pause{0, kLookNs};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace tsp
