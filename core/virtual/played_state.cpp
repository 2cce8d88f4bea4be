// Fills the trace of a played rank.
#include "core/virtual/played_state.h"

#include <cmath>

namespace tsprun::detail {

void PlayedState::note(TraceEvent event, const Clock& clock) const {
  if (trace == nullptr) return;
  event.end_ns = clock.now_ns();
  trace->add(event);
}

void PlayedState::note_kernel(const Clock& clock) const {
  if (trace == nullptr) return;
  const Program& program = rank->program();
  const KernelCost& cost = program.costs[program.items[next - 1].index];
  note({.begin_ns = static_cast<std::uint64_t>(std::llround(began_at * 1e9)),
        .name = cost.kernel,
        .flops = cost.flops,
        .matrix = cost.matrix,
        .sizes = cost.traced_sizes()},
       clock);
}

void PlayedState::hold(const ProgramItem& item) {
  if (trace == nullptr) return;
  std::uint64_t& of = held.of[item.index];
  const bool takes = item.kind == ItemKind::take;
  of = takes ? of + item.amount : of - item.amount;
  held.total = takes ? held.total + item.amount : held.total - item.amount;
  trace->sample(held);
}

}  // namespace tsprun::detail
