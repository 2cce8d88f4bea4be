#include "layers/theory/holdings.h"

#include "core/collectives/chunks.h"
#include "layers/zigzag.h"

namespace tsp::theory {

namespace {

std::uint64_t balanced(int parts, std::uint64_t whole, int part) { return Chunks::balanced(parts, whole).count(part); }

/// Rows of the vocabulary.
std::uint64_t vocabulary_rows(const ModelConfig& model, const Spread& spread, Place place) {
  if (spread.tensors() == 1) return balanced(spread.token_ranks(), model.vocabulary, place.p);
  if (spread.cuts_kept_tokens())
    return balanced(spread.vocabulary_ranks(), model.vocabulary, place.p * spread.tensors() + place.t);
  const std::uint64_t rows = balanced(spread.tensors(), model.vocabulary, place.t);
  return spread.folded() ? balanced(spread.token_ranks(), rows, place.p) : rows;
}

/// What a rank saves inside a layer's sublayers, beside their inputs: bytes for each of its own tokens, and for each token of
/// whole sequences, which Ulysses has of some heads.
struct SavedRow {
  std::uint64_t own;
  std::uint64_t whole;
};

SavedRow saved_row(const Setting& setting, const Spread& spread, Place place) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const ModelConfig& model = setting.model;
  const bool by_heads = spread.sequence == SequenceExchange::ulysses && spread.degree(AxisKind::sp) > 1;
  const HeadGrid heads(model, spread.tensors(), by_heads ? spread.token_ranks() : 1);
  const int p = by_heads ? place.p : 0;
  const std::uint64_t a = HeadGrid(model, spread.tensors(), 1).queries(place.t, 0).count * model.head_dim;
  const std::uint64_t n_q = heads.queries(place.t, p).count;
  const std::uint64_t k = heads.kv_read(place.t, p).count * model.head_dim;
  const std::uint64_t f = balanced(spread.tensors(), model.intermediate, place.t);
  if (setting.recompute == Recompute::full) return {0, 0};
  const bool none = setting.recompute == Recompute::none;
  const std::uint64_t qkv = lse * n_q + (none ? element * (n_q * model.head_dim + 2 * k) : 0);
  const std::uint64_t beside = element * (a + (none ? model.mlp_inputs() * f : 0));
  return by_heads ? SavedRow{beside, qkv} : SavedRow{beside + qkv, 0};
}

}  // namespace

Held held(const ModelConfig& model, const Spread& spread, Place place) {
  const int T = spread.tensors();
  const int D = spread.token_ranks();
  const std::uint64_t h = model.hidden;
  Held result;
  if (spread.zero3()) {
    result.attention = h * balanced(D, 2 * (model.query_width() + model.kv_width()), place.p);
    result.mlp = h * balanced(D, model.mlp_matrices() * model.intermediate, place.p);
  } else {
    const HeadGrid heads(model, T, spread.folded() ? D : 1);
    const int p = spread.folded() ? place.p : 0;
    result.attention = 2 * h * model.head_dim * (heads.queries(place.t, p).count + heads.kv_owned(place.t, p));
    std::uint64_t rows = balanced(T, model.intermediate, place.t);
    if (spread.folded()) rows = balanced(D, rows, p);
    result.mlp = model.mlp_matrices() * h * rows;
  }
  result.attention *= model.layers;
  result.mlp *= model.layers;
  result.vocabulary = (model.tied_embeddings ? 1 : 2) * h * vocabulary_rows(model, spread, place);
  result.norms = model.replicated_parameters();
  return result;
}

std::uint64_t optimizer_states(const ElementBytes& bytes) { return bytes.element < bytes.accumulated ? 3 : 2; }

std::uint64_t kept_rows(const Setting& setting, const Spread& spread, Place place) {
  const Setting replica = replica_setting(setting, spread);
  const std::uint64_t rows = replica.batch * Zigzag(setting.sequence, spread.token_ranks()).tokens(place.p);
  return spread.cuts_kept_tokens() ? balanced(spread.tensors(), rows, place.t) : rows;
}

CategoryBytes persistent(const Setting& setting, const Spread& spread, Place place, std::uint64_t id_bytes) {
  const Setting replica = replica_setting(setting, spread);
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::uint64_t elements = held(setting.model, spread, place).total();
  CategoryBytes bytes;
  bytes[Category::parameters] = elements * element;
  bytes[Category::gradients] = elements * accumulated;
  bytes[Category::optimizer] = elements * accumulated * optimizer_states(setting.bytes);
  const SavedRow inside = saved_row(setting, spread, place);
  const std::uint64_t computed = replica.batch * Zigzag(setting.sequence, spread.token_ranks()).tokens(place.p);
  const std::uint64_t layer = kept_rows(setting, spread, place) * 2 * setting.model.hidden * element + computed * inside.own +
                              replica.tokens() * inside.whole;
  bytes[Category::activations] =
      setting.model.layers * layer + kept_rows(setting, spread, place) * (setting.model.hidden * element + lse + id_bytes);
  for (const std::uint64_t each : bytes.of) bytes.total += each;
  return bytes;
}

Place fullest(const Setting& setting, const Spread& spread) {
  Place most;
  std::uint64_t largest = 0;
  for (int t = 0; t < spread.tensors(); ++t) {
    for (int p = 0; p < spread.token_ranks(); ++p) {
      const std::uint64_t total = persistent(setting, spread, {t, p}, 0).total;
      if (total <= largest) continue;
      largest = total;
      most = {t, p};
    }
  }
  return most;
}

}  // namespace tsp::theory
