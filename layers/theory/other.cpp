// Lists what is summed under `other`, and counts what an all_reduce's algorithm delivers to one rank.
#include "layers/theory/other.h"

#include "core/collectives/communicator_state.h"
#include "layers/layout/slice.h"
#include "layers/layout/zigzag.h"
#include "layers/theory/step.h"

namespace tsprun::detail::theory {

namespace {

/// Returns the elements that this rank receives when the group all-reduces `elements` by `algorithm`.
std::uint64_t received_elements(const Communicator& among, Algorithm algorithm, std::uint64_t elements) {
  return find_algorithm(Op::all_reduce, algorithm)->received(CommunicatorState::of(among).group, elements);
}

/// Does the same for post_sum() of layers/schedules/all_reduce.h, which never sums in one shot by the table's choice for small
/// buffers.
std::uint64_t summed_in_chunks(const Communicator& among, std::uint64_t elements, std::uint64_t element_bytes) {
  if (among.size() == 1 || elements == 0) return 0;
  if (elements * element_bytes > kOneShotBytes) return all_reduced(among, elements, element_bytes);
  return received_elements(among, Algorithm::direct, elements) * element_bytes;
}

/// Returns the bytes of Δ, a number per query head and token, that reach this rank's heads from the tokens of other ranks in a
/// layer's backward pass.
std::uint64_t delta_of_ulysses(const MeshSetting& of, Mesh& mesh) {
  if (!of.layout.exchanges_heads()) return 0;
  const Setting replica = of.replica();
  const std::size_t heads = BlockSlice::of(replica.model, mesh.tensor().rank(), of.layout.tensor()).queries.count;
  const std::size_t own = Zigzag(replica.sequence, of.layout.sequence()).tokens(mesh.sequence().rank());
  return heads / static_cast<std::size_t>(of.layout.sequence()) * replica.batch * (replica.sequence - own) *
         of.setting.bytes.accumulated;
}

}  // namespace

std::uint64_t all_reduced(const Communicator& among, std::uint64_t elements, std::uint64_t element_bytes) {
  if (among.size() == 1 || elements == 0) return 0;
  const Algorithm algorithm = among.algorithm(Op::all_reduce, elements * element_bytes);
  return received_elements(among, algorithm, elements) * element_bytes;
}

OtherBytes other_of_step(const MeshSetting& of, Mesh& mesh, bool training) {
  const ModelConfig& model = of.setting.model;
  OtherBytes bytes{.forward = all_reduced(mesh.world(), 1, sizeof(double))};  // the loss
  if (!training) return bytes;
  const std::uint64_t element = of.setting.bytes.accumulated;
  // The biases of projections are summed apart: under plain tp, the ranks of its axis have the same tokens, but each computes its
  // own slice of them.
  const std::uint64_t biases = model.projection_biases();
  for (const std::uint64_t elements : {model.replicated_parameters() - biases, biases})
    bytes.backward += all_reduced(mesh.tokens(), elements, element) + summed_in_chunks(mesh.data(), elements, element);
  if (!of.layout.slices_tokens()) bytes.backward += all_reduced(mesh.tensor(), biases, element);
  bytes.backward += delta_of_ulysses(of, mesh) * model.layers;
  return bytes;
}

OtherBytes other_of_block(const MeshSetting& of, Mesh& mesh, bool backward) {
  if (!backward) return {};
  const std::uint64_t gains = 2 * of.setting.model.hidden;
  return {.forward = 0, .backward = all_reduced(mesh.tokens(), gains, of.setting.bytes.accumulated) + delta_of_ulysses(of, mesh)};
}

}  // namespace tsprun::detail::theory
