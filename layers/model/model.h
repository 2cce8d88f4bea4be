// A decoder-only transformer of Llama's or GPT-2's kind on the ranks of a mesh: embedding, blocks, final norm, head, loss,
// forward and backward, and the optimizer. Written once for all strategies; all ranks of the mesh call the same functions with
// the same arguments.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/block.h"
#include "layers/model/config.h"
#include "layers/model/data.h"
#include "layers/model/gradient_sums.h"
#include "layers/model/mesh.h"
#include "layers/model/parameter_store.h"
#include "layers/model/strategies.h"
#include "layers/model/vocabulary.h"
#include "layers/theory/setting.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun {

struct ModelOptions {
  ModelConfig config;
  DType dtype = DType::f32;  ///< of parameters and activations: f32, f64, bf16
  Recompute recompute = Recompute::none;
  bool training = false;                                 ///< gradients and optimizer states exist
  std::size_t kv_bucket_heads = 0;                       ///< K/V heads that are gathered at a time; 0: as the strategy chooses
  SequenceExchange exchange = SequenceExchange::gather;  ///< of Scheme::dense
};

/// The tokens of one pass, in natural order, the same on all ranks of the mesh. On a phantom ids and labels may be empty.
struct TokenBatch {
  std::size_t batch = 1;                 ///< B, over all ranks of the data axis
  std::size_t sequence = 0;              ///< S
  std::span<const Token> ids;            ///< [B, S]
  std::span<const std::int64_t> labels;  ///< [B, S]; kernels::kNoLabel where nothing is predicted
  std::uint64_t seed = 0;                ///< of dropout, with `step`: in training, where the model has it
  std::uint64_t step = 0;
};

/// Mean loss in nats over the predicted tokens of all ranks, and how many they are.
struct Loss {
  double mean = 0;
  std::uint64_t tokens = 0;
};

/// How parameters are updated; defaults as the command line's.
struct UpdateOptions {
  double learning_rate = 3e-4;
  double weight_decay = 0.01;  ///< of matrices only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1.0;       ///< of the global gradient norm; 0: none
  std::uint64_t step = 1;  ///< of this update, from 1
};

class Model {
 public:
  /// Takes the memory of the parameters, which are then to be filled (parameters().fill_fresh or load). `mesh`: how the ranks of
  /// the world share weights and tokens; it must outlive the model. Throws Error(refused | out_of_memory).
  Model(Rank& rank, Mesh& mesh, const ModelOptions& options);
  ~Model();

  ParameterStore& parameters() { return store_; }
  const ParameterStore& parameters() const { return store_; }
  Mesh& mesh() const { return mesh_; }
  /// Rows of the vocabulary by rank of the axis that cuts it: tensor under plain tp (over `sequence` they are copies), else
  /// Mesh::tokens().
  const Chunks& vocabulary_rows() const { return vocabulary_rows_; }
  /// The first token id of this rank's rows; the last of all where it has none.
  Token first_own_id() const;
  /// This rank's rows of embedding and head [V_p, h].
  Vocabulary::Weights vocabulary_weights() const;
  /// Norms of a layer and the last biases of its sublayers; the final norm.
  BlockVectors vectors(std::size_t layer) const;
  NormWeights final_norm_weights() const;
  /// Learned positions [max_positions, h]; no dims without them.
  Tensor positions() const { return replicated(ParameterRole::positions, 0).first; }
  const ModelOptions& options() const { return options_; }

  /// Called with K (after RoPE) and V [1, S_p, n_kv, d] of this rank's tokens.
  using KvSink = std::function<void(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens)>;
  /// One sequence through all blocks, for its K and V alone.
  void prefill(std::span<const Token> ids, const KvSink& sink);
  /// Loss of a batch; keeps nothing. `logits` (may be null) is called for tiles of the logits, on the rank that computes them.
  /// The data axis need not divide the batch.
  Loss evaluate(const TokenBatch& tokens, const LogitsSink* logits = nullptr);
  /// Loss and gradients of a batch: every part's gradient is replaced. Requires `training`, and a batch that the data axis
  /// divides; else Error(refused).
  Loss forward_backward(const TokenBatch& tokens);
  /// ‖gradient‖₂ over all parameters of the model, each counted once.
  /// `wish`: also sums up whether any rank has one, at no message more: true on all ranks afterwards if it was on one.
  double gradient_norm(bool* wish = nullptr);
  /// AdamW with the gradients scaled by the clip's factor for `norm`, what gradient_norm() gave.
  void update(const UpdateOptions& options, double norm);

  /// Of the last pass: Vocabulary::rows_given().
  std::size_t rows_given() const { return vocabulary_ ? vocabulary_->rows_given() : 0; }

  /// Payload bytes by purpose of the last forward and backward pass on this rank.
  const TrafficCounters& forward_traffic() const { return forward_traffic_; }
  const TrafficCounters& backward_traffic() const { return backward_traffic_; }

 private:
  /// What the forward pass keeps for the backward pass.
  struct Saved {
    std::vector<BlockSaved> blocks;
    OwnedTensor x;      // the final residual [B, S_p, h]
    OwnedTensor lse;    // of the head, [B·S_p]
    double weight = 0;  // one over the number of predicted tokens
  };

  std::vector<PackPlan> plan_packs() const;
  bool cuts_vocabulary_over_tensor() const { return mesh_.shape().tensor > 1 && !mesh_.shape().slices_tokens(); }
  Communicator& vocabulary_ranks() const { return cuts_vocabulary_over_tensor() ? mesh_.tensor() : mesh_.tokens(); }
  /// The pack of what every rank has, of width h: norms, last biases, learned positions.
  std::size_t replicated_pack() const { return 2 * options_.config.layers; }
  /// One of those and its gradient (no dims without training); no dims where the model has no such parameter.
  std::pair<Tensor, Tensor> replicated(ParameterRole role, std::size_t layer) const;
  NormWeights norm(ParameterRole gain, ParameterRole bias, std::size_t layer) const;
  Bias bias(ParameterRole role, std::size_t layer) const;
  void add_positions(const Tensor& x);
  void begin_dropout(const TokenBatch& own, std::size_t first_token, bool keep);
  void drop_embedding(const Tensor& x);
  void sum_replicated_gradients();
  Loss forward(const TokenBatch& tokens, const LogitsSink* logits, bool keep);
  double forward_own(const TokenBatch& own, std::size_t first_token, const LogitsSink* logits, bool keep);
  void backward();
  void sum_over_world(std::span<double> values);
  void check_tokens(const TokenBatch& tokens) const;
  void check_positions(std::size_t sequence) const;
  void set_layout(std::size_t batch, std::size_t sequence);
  OwnedTensor final_norm(const Tensor& x);

  Rank& rank_;
  Mesh& mesh_;
  ModelOptions options_;
  Chunks vocabulary_rows_;
  std::unique_ptr<Strategy> strategy_;
  ParameterStore store_;
  Block block_;
  GradientSums sums_;
  std::unique_ptr<TokenLayout> layout_;
  std::unique_ptr<Vocabulary> vocabulary_;
  std::vector<std::uint32_t> positions_of_rows_;  // of this rank's residual, in layout_; empty unless positions are learned
  std::optional<DropoutDraws> draws_;             // of the present training pass
  Saved saved_;
  TrafficCounters forward_traffic_;
  TrafficCounters backward_traffic_;
};

}  // namespace tsprun
