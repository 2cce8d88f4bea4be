// The grammar of injected faults. Each `--fault` option describes one:
//
//   KIND:key=value,…
//
//   kill:rank=3,step=12                   kill:rank=3,op=all_gather,seq=42
//   stall:rank=1,step=5,seconds=60        oom:rank=2,step=4
//   delay:from=0,to=1,ms=20,prob=0.1      slow:from=0,to=1,gbps=0.5
//   corrupt:from=0,to=1,nth=7             drop:from=0,to=1,nth=7
//   disconnect:from=0,to=1,step=3         seed=N in any
//
// A text outside the grammar is refused; the error says what is wrong with it and what would work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail::fault {

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

/// Kind of a fault.
enum class Kind : std::uint8_t {
#define TSP_X(name, example) name,
  TSP_FAULT_KINDS(TSP_X)
#undef TSP_X
};

/// A fault. Fields that the text doesn't set keep the values below.
struct Spec {
  Kind kind = Kind::kill;
  std::string text;            ///< as it was typed
  int rank = -1;               ///< kill, stall, oom: the rank that fails, in the world's numbering
  int from = -1;               ///< other kinds: messages from this rank …
  int to = -1;                 ///< … to this rank
  std::uint64_t step = 0;      ///< training step at whose beginning it happens, from 1; 0: not by step
  std::string op;              ///< kind of operation at which it happens; empty: not by operation
  std::uint64_t sequence = 1;  ///< … number of that operation among those of its kind on the rank, from 1
  std::uint64_t nth = 0;       ///< number of the message among those of the pair, from 1; 0: not by number
  double probability = 1;      ///< delay, corrupt, drop: probability with which each message of the pair is struck
  double seconds = 0;          ///< stall: its length
  double milliseconds = 0;     ///< delay: added to each message that is struck
  double gigabytes_per_s = 0;  ///< slow: bandwidth, in 10⁹ bytes per second
  std::uint64_t seed = 0;

  /// Returns true if the fault strikes one rank (kill, stall, oom) rather than messages of a pair.
  bool strikes_rank() const { return kind == Kind::kill || kind == Kind::stall || kind == Kind::oom; }
};

/// Parses the text of one `--fault`. `ranks` is the number of ranks of the job, 0 if unknown; `source` is the option or the
/// variable that holds the text. Throws Error(refused) naming the source, the text, what is wrong with it and what would work;
/// also if the text names ranks that the job doesn't have, or a pair whose two ends are one rank.
Spec parse(std::string_view text, int ranks = 0, std::string_view source = "--fault");

}  // namespace tsprun::detail::fault
