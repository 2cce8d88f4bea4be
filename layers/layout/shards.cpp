// Sizes of TSP's shards, from the cuts that the schedules use (HeadCut, Chunks).
#include "layers/layout/shards.h"

namespace tsprun::detail {

TspShards::TspShards(const ModelConfig& model, int ranks)
    : model_(model),
      heads_(model.query_heads, model.kv_heads, ranks),
      mlp_rows_(Chunks::balanced(ranks, model.intermediate)),
      vocabulary_rows_(Chunks::balanced(ranks, model.vocabulary)) {}

std::uint64_t TspShards::attention(int rank) const {
  return 2 * model_.hidden * model_.head_dim * (heads_.query_heads(rank).count + heads_.kv_heads_owned(rank).count);
}

std::uint64_t TspShards::mlp(int rank) const { return model_.mlp_matrices() * model_.hidden * mlp_rows_.count(rank); }

std::uint64_t TspShards::vocabulary(int rank) const {
  return (model_.tied_embeddings ? 1U : 2U) * model_.hidden * vocabulary_rows_.count(rank);
}

std::uint64_t TspShards::norm_gains() const { return model_.replicated_parameters(); }

std::uint64_t TspShards::total(int rank) const {
  return model_.layers * (attention(rank) + mlp(rank)) + vocabulary(rank) + norm_gains();
}

}  // namespace tsprun::detail
