// The grammar of injected faults, one `--fault` each:
//
//   KIND:key=value,…
//
//   kill:rank=3,step=12                   kill:rank=3,op=all_gather,seq=42
//   stall:rank=1,step=5,seconds=60        oom:rank=2,step=4
//   delay:from=0,to=1,ms=20,prob=0.1      slow:from=0,to=1,gbps=0.5
//   corrupt:from=0,to=1,nth=7             drop:from=0,to=1,nth=7
//   disconnect:from=0,to=1,step=3         seed=N in any
//
// A text that can't be meant is refused with what is wrong and the nearest form that works.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::fault {

// X(enumerator = name in the grammar, an example)
#define TSP_FAULT_KINDS(X)                     \
  X(kill, "kill:rank=3,step=12")               \
  X(stall, "stall:rank=1,step=5,seconds=60")   \
  X(oom, "oom:rank=2,step=4")                  \
  X(delay, "delay:from=0,to=1,ms=20,prob=0.1") \
  X(slow, "slow:from=0,to=1,gbps=0.5")         \
  X(corrupt, "corrupt:from=0,to=1,nth=7")      \
  X(drop, "drop:from=0,to=1,nth=7")            \
  X(disconnect, "disconnect:from=0,to=1,step=3")

enum class Kind : std::uint8_t {
#define TSP_X(name, example) name,
  TSP_FAULT_KINDS(TSP_X)
#undef TSP_X
};

std::string_view name(Kind kind);

/// One fault. Numbers that the text doesn't give keep the values below.
struct Spec {
  Kind kind = Kind::kill;
  std::string text;            ///< as it was typed
  int rank = -1;               ///< of the world: kill, stall, oom
  int from = -1;               ///< the others: messages from this rank
  int to = -1;                 ///< … to this one
  std::uint64_t step = 0;      ///< at the beginning of this training step, from 1; 0: not by step
  std::string op;              ///< at an operation of this kind; empty: not by operation
  std::uint64_t sequence = 1;  ///< … the how many-th of its kind on its rank, from 1
  std::uint64_t nth = 0;       ///< the how many-th message of the pair, from 1; 0: not by number
  double probability = 1;      ///< of each message of the pair: delay, corrupt, drop
  double seconds = 0;          ///< stall: how long
  double milliseconds = 0;     ///< delay: of each message that is struck
  double gigabytes_per_s = 0;  ///< slow: 10⁹ bytes per second
  std::uint64_t seed = 0;

  /// Whether it strikes one rank (kill, stall, oom) rather than messages of a pair.
  bool strikes_rank() const { return kind == Kind::kill || kind == Kind::stall || kind == Kind::oom; }
};

/// Throws Error(refused) naming the text, what is wrong with it and the nearest one that works. `ranks`: of the job; a text that
/// names others, or two ends that are one rank, is refused. 0: that isn't known.
Spec parse(std::string_view text, int ranks = 0);

}  // namespace tsprun::fault
