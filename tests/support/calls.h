// Collective calls as data: one Call says what all ranks of a group do, start() does this rank's part, finish() waits and holds
// the result against the oracle, guard elements around the buffers included.
#pragma once

#include "core/context.h"
#include "tests/support/oracle.h"
#include "tsprun/communicator.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test {

enum class Where { heap, plain };

struct Call {
  Op op = Op::barrier;  ///< send: every rank sends to its successor and receives from its predecessor; send_recv: to the rank
                        ///< `root` places on and from the one as many places back, all at once
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
  int root = 0;
  /// Elements. With `uneven` (all_gather, reduce_scatter, all_to_all, send, send_recv) of each rank, else counts[0] everywhere.
  std::vector<std::size_t> counts;
  bool uneven = false;
  bool scattered = false;  ///< with `uneven`, of all_gather and reduce_scatter: chunks in random order, with holes
  bool in_place = false;   ///< where the operation has such a form; else without meaning
  bool posted = false;
  Where where = Where::heap;
  CallOptions options;
  std::uint64_t seed = 0;

  std::string describe() const;
};

/// A call under way on this rank.
class Running {
 public:
  virtual ~Running() = default;
  /// Waits if it was posted, then compares: every difference is a test failure.
  virtual void finish() = 0;
};

/// Makes buffers, fills them, and makes the call (returning at once if it is to be posted).
std::unique_ptr<Running> start(Context& context, Communicator& group, const Call& call);

/// start() and finish().
void run(Context& context, Communicator& group, const Call& call);

/// Elements that rank `from` sends to rank `to` in an all_to_all of that call.
std::size_t all_to_all_count(const Call& call, int from, int to);

/// Returns whether calls of an operation can have the property.
bool reduces(Op op);
bool has_root(Op op);
bool has_uneven_form(Op op);
bool has_scattered_form(Op op);
bool has_in_place_form(Op op);

/// Returns all algorithms of an operation that give the canonical bits, `automatic` first.
std::vector<Algorithm> algorithms_of(Op op);
/// Returns true if a group can run an operation by this algorithm.
bool can_run(const Communicator& group, Op op, Algorithm algorithm);

/// All operations that a Call can make: all but recv, which comes with send.
inline constexpr Op kCallable[] = {Op::send,   Op::send_recv,  Op::broadcast, Op::all_gather, Op::reduce_scatter, Op::all_reduce,
                                   Op::reduce, Op::all_to_all, Op::gather,    Op::scatter,    Op::barrier};
inline constexpr DType kDTypes[] = {DType::byte, DType::bf16, DType::f32, DType::f64, DType::f16,
                                    DType::i8,   DType::u8,   DType::i32, DType::i64, DType::boolean};
inline constexpr Reduction kReductions[] = {Reduction::sum,     Reduction::max,     Reduction::min,    Reduction::product,
                                            Reduction::average, Reduction::bit_and, Reduction::bit_or, Reduction::bit_xor};
/// Returns the reductions that elements of a type have.
std::span<const Reduction> reductions_of(DType dtype);

/// A call of random kind, size, form and memory, for a group of `ranks` ranks: the same for the same seed.
Call random_call(std::uint64_t seed, int ranks, std::size_t largest_count);

}  // namespace tsprun::detail::test
