// Decodes a token layer by layer: projections of the share, cached attention, merge of partial results, sums.
#include "layers/model/decode.h"

#include "core/kernels/check.h"
#include "core/trace/recorder.h"
#include "layers/schedules/head_projection.h"
#include "layers/schedules/mlp_columns.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tsprun::detail {

namespace {

const CallOptions kDecoded{.stream = Stream::kv, .purpose = Purpose::activations};

}  // namespace

std::string Decoder::why_not(const Layout& layout) {
  for (const Axis& axis : layout.axes) {
    if (axis.degree == 1) continue;
    if (const std::string_view why = row_of(axis.kind).why_not_decoded; !why.empty()) return std::string(why);
    if (const Variant* variant = variant_of(axis); variant != nullptr && !variant->why_not_decoded.empty())
      return std::string(variant->why_not_decoded);
  }
  constexpr int kMostParts = 64;  // limit of merge_attention()
  if (layout.sequence() > kMostParts) return fmt::format("at most {} ranks share a cache's positions", kMostParts);
  return {};
}

namespace {

/// Cuts the slice's query heads over `ranks` as evenly as possible, and gives each rank the K/V heads that its query heads are
/// the first to read. All are numbered within the slice.
template <class Share>
std::vector<Share> cut_heads(const BlockSlice& slice, std::size_t heads_per_kv_head, int ranks) {
  const Chunks cut = Chunks::balanced(ranks, slice.queries.count);
  const std::size_t g = heads_per_kv_head;
  std::vector<Share> shares;
  std::size_t next = 0;
  for (int r = 0; r < ranks; ++r) {
    const HeadRange queries{cut.offset(r), cut.count(r)};
    const std::size_t read = queries.count == 0 ? next : (slice.queries.first + queries.end() - 1) / g + 1 - slice.kv.first;
    shares.push_back({queries, {next, read - next}});
    next = read;
  }
  return shares;
}

template <class OfLayer>
CachedHeads cached(const OfLayer& of) {
  CachedHeads heads{.count = of.slice.kv.count, .head_dim = of.d, .shares = {}};
  for (const auto& share : of.shares) heads.shares.push_back(share.kv);
  return heads;
}

/// Returns heads [heads, d] of one token as attention takes them, [1, 1, heads, d].
template <class View>
View as_query(const View& heads) {
  return heads.split(0, heads.size(0)).split(0, 1);
}

}  // namespace

Decoder::Decoder(Rank& rank, Model& model, std::vector<std::size_t> positions)
    : rank_(rank),
      model_(model),
      sequence_(model.mesh().group({model.mesh().layout().token_axis()})),
      config_(model.options().config),
      dtype_(model.options().dtype),
      sums_(kernels::summed_in(dtype_)),
      at_{model.mesh().place(model.mesh().layout().tensor_axis()), model.mesh().layout().tensor()},
      layers_(config_,
              [&](std::size_t layer) {
                const LayerSpec& spec = config_.layer(layer);
                const BlockSlice slice = BlockSlice::of(config_, spec, at_);
                return OfLayer{.slice = slice,
                               .shares = cut_heads<Share>(slice, config_.heads_per_kv_head(spec), sequence_.size()),
                               .d = config_.head_dim_of(spec)};
              }),
      positions_(std::move(positions)),
      lengths_(positions_.size(), 0),
      cache_(rank, sequence_, config_, dtype_, {layers_, cached<OfLayer>}, positions_),
      rotations_(rank, config_, dtype_, positions_.size(), model.expect(std::ranges::max(positions_))),
      logits_(rank.tensor(Category::communication, sums_, {texts(), config_.vocabulary}, "logits")) {
  if (const std::string why = why_not(model.mesh().layout()); !why.empty()) throw Error(Cause::refused, "decoding: " + why);
  for (const std::size_t room : positions_) {
    if (!config_.learned_positions || room <= config_.max_positions) continue;
    throw Error(Cause::refused,
                fmt::format("{} tokens in all; {} has {} learned positions", room, config_.name, config_.max_positions));
  }
}

// --- weights -----------------------------------------------------------------------------------------------------------------

/// Returns this rank's share of the pack [W_K; W_V; W_Q; W_Oᵀ] of the heads that it holds.
Decoder::AttentionRows Decoder::attention_rows(std::size_t layer) const {
  const Tensor rows = model_.parameters().values(attention_pack_number(layer));
  const BlockSlice& slice = of(layer).slice;
  const std::size_t d = of(layer).d;
  const Share& mine = this->mine(layer);
  const Share held = holds_share_only() ? mine : Share{{0, slice.queries.count}, {0, slice.kv.count}};
  const bool has_keys = config_.layer(layer).projects_keys();
  const bool has_values = config_.layer(layer).projects_values();
  const std::size_t k = has_keys ? held.kv.count * d : 0;
  const std::size_t v = has_values ? k : 0;
  const std::size_t a = held.queries.count * d;
  const std::size_t own_kv = has_keys ? (mine.kv.first - held.kv.first) * d : 0;
  const std::size_t own_q = (mine.queries.first - held.queries.first) * d;
  const std::size_t kv_rows = has_keys ? mine.kv.count * d : 0;
  const std::size_t q_rows = mine.queries.count * d;
  return {.K = rows.slice(0, own_kv, kv_rows),
          .V = has_values ? rows.slice(0, k + own_kv, kv_rows) : Tensor(),
          .Q = rows.slice(0, k + v + own_q, q_rows),
          .KVQ = has_values && own_kv + own_q == 0 && kv_rows == k && q_rows == a ? rows.slice(0, 0, 2 * k + a) : Tensor(),
          .Ot = rows.slice(0, k + v + a + own_q, q_rows)};
}

MlpMatrices Decoder::mlp_rows(std::size_t layer) const {
  MlpMatrices W(model_.parameters().values(mlp_pack_number(layer)), config_);
  if (holds_share_only()) return W;
  const Chunks cut = mlp_cut(layer);
  for (Tensor* rows : {&W.W1, &W.W3, &W.W2t}) {
    if (rows->dims() > 0) *rows = rows->slice(0, cut.offset(p()), cut.count(p()));
  }
  return W;
}

// --- the prompt --------------------------------------------------------------------------------------------------------------

ConstTensor Decoder::prompt(std::span<const std::vector<Token>> prompts) {
  std::vector<Token> last;
  for (std::size_t text = 0; text < texts(); ++text) {
    const std::span<const Token> ids = prompts[text];
    if (ids.empty() || lengths_[text] + ids.size() > positions_[text]) {
      throw Error(Cause::refused,
                  fmt::format("a prompt of {} tokens; 1 to {} fit", ids.size(), positions_[text] - lengths_[text]));
    }
    last.push_back(ids.back());
    const std::span<const Token> first = ids.first(ids.size() - 1);
    if (first.empty()) continue;
    model_.prefill(first, [&](std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens) {
      cache_.fill(layer, text, k, v, tokens);
    });
    lengths_[text] = first.size();
  }
  return step(last);
}

// --- a token of each text ----------------------------------------------------------------------------------------------------

/// Returns where in the texts a step is, for messages.
std::string Decoder::where() const {
  if (texts() == 1) return fmt::format("forward of token {}", lengths_[0]);
  return fmt::format("forward of the next tokens of {} texts", texts());
}

/// Returns the tokens' rows of a table that is cut as the vocabulary is, of which this rank has the rows `table`: [texts, width].
/// The ranks that have them give them to all.
OwnedTensor Decoder::rows_of_table(std::span<const Token> tokens, const Tensor& table) {
  const std::size_t width = table.size(1);
  const Chunks& rows_of = model_.vocabulary_rows();
  Communicator& holders = model_.vocabulary_ranks();
  std::vector<std::uint32_t> own;                   // rows of this rank
  std::vector<std::uint32_t> where(tokens.size());  // places of the tokens' rows among those of all ranks
  std::vector<std::size_t> counts;
  std::uint32_t arrived = 0;
  for (int r = 0; r < holders.size(); ++r) {
    const std::uint32_t before = arrived;
    for (std::size_t text = 0; text < tokens.size(); ++text) {
      const auto id = static_cast<std::size_t>(tokens[text]);
      if (tokens[text] < 0 || id >= config_.vocabulary) {
        throw Error(Cause::refused, fmt::format("token id {}: the vocabulary has {} ids", tokens[text], config_.vocabulary));
      }
      if (id < rows_of.offset(r) || id >= rows_of.offset(r) + rows_of.count(r)) continue;
      where[text] = arrived++;
      if (r == holders.rank()) own.push_back(static_cast<std::uint32_t>(id - rows_of.offset(r)));
    }
    counts.push_back((arrived - before) * width);
  }
  OwnedTensor x = rows(dtype_, width, "embedded token");
  if (holders.size() == 1) {
    rank_.compute().gather_rows(x, table, own);
  } else {
    const OwnedTensor out = rank_.tensor(Category::communication, dtype_, {own.size(), width}, "embedded tokens");
    const OwnedTensor in = rank_.tensor(Category::communication, dtype_, {texts(), width}, "embedded tokens");
    if (!own.empty()) rank_.compute().gather_rows(out, table, own);
    rank_.wait(holders.post_all_gather_v(buffer_of(ConstTensor(out.view())), buffer_of(in.view()), counts,
                                         {.stream = Stream::kv, .purpose = Purpose::embedding}));
    rank_.compute().gather_rows(x, in.view(), where);
  }
  return x;
}

/// Returns x [texts, h].
OwnedTensor Decoder::embed(std::span<const Token> tokens) {
  OwnedTensor x = rows_of_table(tokens, model_.vocabulary_weights().embedding);
  if (config_.embedding_factor() != 1) rank_.compute().multiply(x, x.view(), config_.embedding_factor());
  if (config_.learned_positions) add_positions(x);
  return x;
}

void Decoder::add_positions(const Tensor& x) {
  for (std::size_t text = 0; text < texts(); ++text) {
    const Tensor token = x.slice(0, text, 1);
    rank_.compute().add(token, token, model_.positions().slice(0, lengths_[text], 1));
  }
}

OwnedTensor Decoder::normed(const Tensor& x, const NormWeights& norm, double multiplier) {
  OwnedTensor y = rows(dtype_, config_.hidden, "normed token");
  apply_norm(rank_.compute(), config_, y, x, norm, multiplier);
  return y;
}

void Decoder::add_result(const Tensor& x, const Tensor& y, const Bias& bias, const NormWeights& norm) {
  ComputeStream& compute = rank_.compute();
  bias.add_to(compute, y);
  if (norm.exists()) {
    OwnedTensor narrow;  // the norm takes the model's dtype
    if (y.dtype() != dtype_) {
      narrow = rows(dtype_, config_.hidden, "sublayer's result before its norm");
      compute.convert(narrow, y);
    }
    apply_norm(compute, config_, y, narrow.exists() ? narrow.view() : y, norm);
  }
  if (config_.residual_multiplier == 1) compute.add(x, x, y);
  else compute.add_multiple(x, x, y, config_.residual_multiplier);
}

void Decoder::sum_over_ranks(const Tensor& y) {
  Communicator& replica = model_.mesh().group(model_.mesh().layout().axes_of_replica());
  if (replica.size() == 1) return;
  rank_.wait(replica.post_all_reduce(buffer_of(ConstTensor(y)), buffer_of(y), Reduction::sum, kDecoded));
}

std::vector<std::size_t> Decoder::by_share(std::size_t layer, std::size_t width) const {
  std::vector<std::size_t> counts;
  for (const Share& share : of(layer).shares) counts.push_back(share.queries.count * texts() * width);
  return counts;
}

/// Returns O of this rank's share of heads over all positions, [texts, heads·d], in the model's dtype. `own_q` [texts, heads·d]:
/// their queries.
OwnedTensor Decoder::attended(std::size_t layer, const Tensor& own_q) {
  const BlockSlice& slice = of(layer).slice;
  const std::size_t d = of(layer).d;
  const std::size_t heads = slice.queries.count;
  const LayerSpec& spec = config_.layer(layer);
  const kernels::Attention all{.scale = config_.attention_factor(spec),
                               .mask = kernels::Mask::none(),
                               .heads = {config_.heads_per_kv_head(spec), slice.queries.first, slice.kv.first},
                               .dropout = {},
                               .cap = spec.score_cap};
  const auto attend = [&](std::size_t text, const Tensor& o, const Tensor& lse, const ConstTensor& q) {
    const std::size_t length = lengths_[text] + 1;
    const std::size_t first = spec.window == 0 ? 0 : length - std::min(length, spec.window);
    rank_.compute().flash_forward(all, as_query(o), lse, as_query(q), cache_.keys(layer, text, first, length),
                                  cache_.values(layer, text, first, length));
  };
  if (D() == 1) {
    OwnedTensor o = rows(dtype_, heads * d, "attention output");
    const OwnedTensor lse = rank_.tensor(Category::workspace, sums_, {1, heads, 1}, "log-sum-exp");
    for (std::size_t text = 0; text < texts(); ++text)
      attend(text, o->select(0, text).split(0, d), lse, own_q.select(0, text).split(0, d));
    return o;
  }
  // Heads before texts: then the parts of a share lie together.
  const std::size_t own = mine(layer).queries.count;
  const OwnedTensor leaving = rank_.tensor(Category::communication, dtype_, {own, texts(), d}, "own queries");
  if (own > 0) rank_.compute().convert(leaving, own_q.split(1, d).transposed(0, 1));
  const OwnedTensor q = rank_.tensor(Category::communication, dtype_, {heads, texts(), d}, "all queries");
  rank_.wait(
      sequence_.post_all_gather_v(buffer_of(ConstTensor(leaving.view())), buffer_of(q.view()), by_share(layer, d), kDecoded));
  const OwnedTensor parts =
      rank_.tensor(Category::communication, sums_, {heads, texts(), part_width(layer)}, "partial attention");
  for (std::size_t text = 0; text < texts(); ++text) {
    const Tensor part = parts->select(1, text);
    attend(text, part.slice(1, 0, d), as_query(part.slice(1, d, kLseNumbers)).transposed(1, 2), q->select(1, text));
  }
  return merged_heads(layer, parts);
}

/// Returns O of its share's heads over all positions, [texts, heads·d], in the model's dtype. `parts` [n_q, texts, d + 2], in the
/// type of sums: this rank's partial O and log-sum-exp of every head of the slice.
OwnedTensor Decoder::merged_heads(std::size_t layer, const Tensor& parts) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t d = of(layer).d;
  const std::size_t count = mine(layer).queries.count;
  const std::size_t width = part_width(layer);
  const OwnedTensor in = rank_.tensor(Category::communication, sums_, {ranks, count, texts(), width}, "partial attention");
  const std::vector<std::size_t> arriving(ranks, count * texts() * width);
  rank_.wait(sequence_.post_all_to_all_v(buffer_of(ConstTensor(parts)), by_share(layer, width), buffer_of(in.view()), arriving,
                                         kDecoded));
  OwnedTensor narrow = rows(dtype_, count * d, "attention output");
  if (count == 0) return narrow;
  std::vector<ConstTensor> part_o;
  std::vector<ConstTensor> part_lse;
  for (std::size_t i = 1; i <= ranks; ++i) {  // in canonical order: the next rank's first, the own last
    const Tensor part = in->select(0, (static_cast<std::size_t>(p()) + i) % ranks);  // [heads, texts, d + 2]
    part_o.push_back(part.slice(2, 0, d).transposed(0, 1).split(0, texts()));
    part_lse.push_back(part.slice(2, d, kLseNumbers).split(0, count));
  }
  const OwnedTensor o = rank_.tensor(Category::workspace, sums_, {1, texts(), count, d}, "attention output");
  const OwnedTensor lse = rank_.tensor(Category::workspace, sums_, {1, count, texts()}, "log-sum-exp");
  rank_.compute().merge_attention(config_.attention_factor(config_.layer(layer)), o, lse, part_o, part_lse);
  rank_.compute().convert(narrow, o->reshaped({texts(), count * d}));
  return narrow;
}

/// Returns y [texts, h] in the type of sums.
OwnedTensor Decoder::attention(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  const BlockSlice& slice = of(layer).slice;
  const Share& mine = this->mine(layer);
  const std::size_t d = of(layer).d;
  const AttentionRows W = attention_rows(layer);
  const std::size_t kv_rows = W.K.size(0);
  const bool has_keys = config_.layer(layer).projects_keys();
  Communicator& replica = model_.mesh().group(model_.mesh().layout().axes_of_replica());
  const HeadOwners owners{.ranks = replica.size() == 1 ? nullptr : &replica, .at = at_};
  const HeadProjections of_layer(rank_, model_.parameters(), config_, layer, rotations_, owners);

  const std::size_t q_rows = W.Q.size(0);
  const OwnedTensor all_new = rank_.tensor(Category::workspace, dtype_, {texts(), 2 * kv_rows + q_rows}, "new K, V and queries");
  const Tensor kv = all_new->slice(1, 0, 2 * kv_rows);
  const Tensor own_k = kv.slice(1, 0, kv_rows);
  const Tensor own_v = kv.slice(1, kv_rows, kv_rows);
  const Tensor own_q = all_new->slice(1, 2 * kv_rows, q_rows);
  if (W.KVQ.dims() > 0) {
    compute.gemm("W_KVQ", all_new, x, W.KVQ.transposed(0, 1));
  } else {
    compute.gemm("W_Q", own_q, x, W.Q.transposed(0, 1));
    if (has_keys) compute.gemm("W_K", own_k, x, W.K.transposed(0, 1));
    if (W.V.dims() > 0) compute.gemm("W_V", own_v, x, W.V.transposed(0, 1));
  }
  // A row of each text is a token of one sequence.
  const auto heads = [&](const Tensor& rows) { return rows.split(1, d).split(0, texts()); };
  of_layer.query({slice.queries.first + mine.queries.first, mine.queries.count}).finish(heads(own_q), heads(own_q));
  const HeadRange own{slice.kv.first + mine.kv.first, mine.kv.count};
  if (has_keys) of_layer.finish_keys(own, heads(own_k), heads(own_k), heads(own_v));
  if (W.V.dims() > 0) of_layer.value(own).finish(heads(own_v), heads(own_v));
  rank_.enter_stage(PassPart::attention, false, [&] { return Block::stage(layer, "attention", where()); });
  rank_.look(Watched::input, x);
  rank_.look(Watched::queries, own_q);
  if (has_keys) {
    rank_.look(Watched::keys, own_k);
    rank_.look(Watched::values, own_v);
    cache_.add(layer, kv, lengths_);
  }
  const OwnedTensor o = attended(layer, own_q);
  rank_.look(Watched::attention_output, o.view());
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {texts(), config_.hidden}, "attention result");
  compute.gemm("W_O", y, o.view(), W.Ot);
  sum_over_ranks(y);
  return y;
}

OwnedTensor Decoder::mlp(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  rank_.enter_stage(PassPart::mlp, false, [&] { return Block::stage(layer, "MLP", where()); });
  rank_.look(Watched::input, x);
  const MlpMatrices W = mlp_rows(layer);
  const Chunks cut = mlp_cut(layer);
  const MlpColumns columns(rank_, config_, dtype_, texts(), 0, cut.count(p()), {});
  const BlockBiases biases(model_.parameters(), config_, layer);
  columns.project(x, W, biases.mlp.slice(of(layer).slice.first_row + cut.offset(p()), cut.count(p())));
  const OwnedTensor a = columns.activation();
  rank_.look(Watched::result, a.view());
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {texts(), config_.hidden}, "MLP result");
  compute.gemm("W_2", y, a.view(), W.W2t);
  sum_over_ranks(y);
  return y;
}

/// Fills logits_ with those of all ranks, of which `own` [texts, rows of this rank] has the own.
void Decoder::gather_logits(const Tensor& own) {
  const Chunks& rows_of = model_.vocabulary_rows();
  Communicator& holders = model_.vocabulary_ranks();
  const bool in_place = texts() == 1 || holders.size() == 1;
  OwnedTensor in;
  if (!in_place) in = rank_.tensor(Category::communication, sums_, {logits_->elements()}, "logits by rank");
  rank_.wait(holders.post_all_gather_v(buffer_of(ConstTensor(own)), buffer_of(in_place ? logits_.view() : in.view()),
                                       rows_of.counts(holders.size(), texts()),
                                       {.stream = Stream::kv, .purpose = Purpose::head}));
  if (in_place) return;
  for (int r = 0; r < holders.size(); ++r) {
    if (rows_of.count(r) == 0) continue;
    const Tensor part = in->slice(0, texts() * rows_of.offset(r), texts() * rows_of.count(r));
    rank_.compute().convert(logits_->slice(1, rows_of.offset(r), rows_of.count(r)), part.reshaped({texts(), rows_of.count(r)}));
  }
}

ConstTensor Decoder::step(std::span<const Token> tokens) {
  for (std::size_t text = 0; text < texts(); ++text) {
    if (lengths_[text] < positions_[text]) continue;
    throw Error(Cause::refused, fmt::format("the cache is full: {} tokens", positions_[text]));
  }
  const TraceSpan span(rank_.trace(), "token", static_cast<std::int64_t>(lengths_[0]));
  ComputeStream& compute = rank_.compute();
  if (config_.rotary_positions()) rotations_.fill(std::vector<std::int64_t>(lengths_.begin(), lengths_.end()));
  OwnedTensor x = embed(tokens);
  std::optional<LayerInputs> inputs;
  if (config_.layer_input > 0) {
    inputs.emplace(rank_, config_, rows_of_table(tokens, model_.input_table()), Category::workspace);
    inputs->make(x, model_.input_weights(), false);
  }
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    const BlockVectors vectors = model_.vectors(layer);
    const auto add_attention = [&](const ConstTensor& of) {
      add_result(x, attention(layer, of), vectors.attention_output, vectors.post_attention);
    };
    const auto add_mlp = [&](const ConstTensor& of) { add_result(x, mlp(layer, of), vectors.mlp_output, vectors.post_mlp); };
    switch (config_.layer(layer).norms) {
      case NormPlaces::before:
      case NormPlaces::around:
        add_attention(normed(x, vectors.attention));
        add_mlp(normed(x, vectors.mlp));
        break;
      case NormPlaces::after:
        add_attention(x);
        add_mlp(x);
        break;
      case NormPlaces::shared: {
        const OwnedTensor both = normed(x, vectors.attention);
        add_attention(both);
        add_mlp(both);
        break;
      }
    }
    if (inputs) inputs->add(layer, x, x, vectors.input);
    if (config_.layer(layer).scales_output) compute.multiply(x, x.view(), vectors.output_scale);
  }
  const auto [head, bias] = [&] {
    const Vocabulary::Weights weights = model_.vocabulary_weights();
    const Chunks& rows_of = model_.vocabulary_rows();
    const int me = model_.vocabulary_ranks().rank();
    return std::pair(weights.head, weights.head_bias.slice(rows_of.offset(me), rows_of.count(me)));
  }();
  const OwnedTensor own = rank_.tensor(Category::communication, sums_, {texts(), head.size(0)}, "logits");
  compute.gemm("W_vocab", own, normed(x, model_.final_norm_weights(), config_.logits_factor()).view(), head.transposed(0, 1));
  bias.add_to(compute, own);
  if (config_.logit_cap > 0) compute.cap_logits(own, config_.logit_cap);
  rank_.enter_stage(PassPart::head, false, [&] { return "head, " + where(); });
  rank_.look(Watched::input, x.view());
  rank_.look(Watched::result, own.view());
  gather_logits(own);
  for (std::size_t& length : lengths_) ++length;
  return logits_.view();
}

}  // namespace tsprun::detail
