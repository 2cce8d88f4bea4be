// A decoder-only transformer on the ranks of a mesh: embedding, blocks, final norm, head and loss,
// forward and backward, and the optimizer. One implementation for all strategies. Every method that computes is collective: all
// ranks of the mesh call the same methods with the same arguments.
#pragma once

#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/io/data.h"
#include "layers/layout/mesh.h"
#include "layers/layout/packed_documents.h"
#include "layers/layout/setting.h"
#include "layers/model/block.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/boundaries.h"
#include "layers/schedules/gradient_sums.h"
#include "layers/schedules/micro_batch.h"
#include "layers/schedules/own_packs.h"
#include "layers/schedules/stage_sums.h"
#include "layers/schedules/strategies.h"
#include "layers/schedules/tasks.h"
#include "layers/schedules/vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Options of a model: what it computes, and what it keeps in memory.
struct ModelOptions {
  ModelConfig config;
  DType dtype = DType::f32;               ///< dtype of parameters and activations: f32, f64 or bf16
  Recompute recompute = Recompute::none;  ///< what the forward pass keeps (`--recompute`)
  bool training = false;                  ///< allocate gradients and optimizer states
  std::size_t kv_bucket_heads = 0;        ///< K/V heads gathered at a time; 0: the strategy chooses
};

/// Tokens of one pass in natural order, the same on all ranks of the mesh. On a phantom `ids` and `labels` may be empty.
struct TokenBatch {
  std::size_t batch = 1;                 ///< B, sequences on all ranks of the data axis together
  std::size_t sequence = 0;              ///< S, tokens of each sequence
  std::span<const Token> ids;            ///< [B, S] token ids; on a phantom none or one, too: Vocabulary::embed()
  std::span<const std::int64_t> labels;  ///< [B, S] token ids to predict; kernels::kNoLabel where nothing is predicted
  /// Token with which a document ends; none: each sequence is one document. Attention doesn't cross documents, and positions
  /// begin anew with each; `labels` are the caller's.
  std::optional<Token> document_end = {};
  /// Where no token says it: lengths of the documents of each sequence, S together, as forecasts have them. Empty: one document.
  std::span<const std::uint32_t> documents = {};
  std::uint64_t seed = 0;  ///< seed and step determine dropout, in training passes of models that have it
  std::uint64_t step = 0;
  /// M: training computes the sequences of each data rank in so many equal parts, one after another, and adds up their gradients
  /// (micro_batch.h). Part m of data rank r begins with sequence (r·M + m)·B/(dp·M). Dropout draws by sequence in the whole
  /// batch, so M changes no draw. Evaluations ignore it.
  std::size_t micro_batches = 1;

  /// Returns whether sequences have documents within.
  bool packed() const { return document_end.has_value() || !documents.empty(); }
};

/// Mean cross-entropy in nats over the predicted tokens of all ranks, and the number of those tokens.
struct Loss {
  double mean = 0;
  std::uint64_t tokens = 0;
};

/// Settings of one AdamW update; the defaults are those of the command line.
struct UpdateOptions {
  double learning_rate = 3e-4;
  double weight_decay = 0.01;  ///< applied to matrices only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1.0;       ///< largest global gradient norm; 0: no clipping
  std::uint64_t step = 1;  ///< number of this update, from 1
};

/// Returns the packs of the whole model that this rank holds, in the order in which a Model's store has them.
std::vector<PackPlan> model_packs(const ModelConfig& config, Mesh& mesh);

/// The model on one rank: its part of the parameters, and the passes that compute with them.
class Model {
 public:
  /// Allocates the parameters, which the caller then fills (parameters().fill_fresh() or load()). `rank` and `mesh` are borrowed
  /// and must outlive the model; `mesh` says how the ranks of the world share weights and tokens. Throws Error(refused) if the
  /// model can't be cut over the mesh, and Error(out_of_memory).
  Model(Rank& rank, Mesh& mesh, const ModelOptions& options);

  ParameterStore& parameters() { return store_; }
  const ParameterStore& parameters() const { return store_; }
  Mesh& mesh() const { return mesh_; }
  /// Returns which rows of the vocabulary each rank of the axis that cuts it has: the tensor axis under plain tp, where the ranks
  /// with other tokens have copies, else those with other tokens (Layout::axes_of_vocabulary()).
  const Chunks& vocabulary_rows() const { return vocabulary_rows_; }
  /// Returns these ranks.
  Communicator& vocabulary_ranks() const { return vocabulary_ranks_; }
  /// Returns the first token id of this rank's vocabulary rows, or the vocabulary's last id if this rank has none.
  Token first_own_id() const;
  /// Returns this rank's rows of embedding and head, each [V_p, h]. Precondition: the data ranks don't share weights.
  Vocabulary::Weights vocabulary_weights() const;
  /// Returns a layer's norm parameters, the last biases of its sublayers (b_O, b_2), the weights of its
  /// own input's term, and the scale of its output.
  BlockVectors vectors(std::size_t layer) const;
  /// Return the weights with which layers' inputs are made, and this rank's rows of their table [V_p, L·w], in models that have
  /// them.
  InputWeights input_weights() const;
  Tensor input_table() const { return store_.values(inputs_pack(), 0, 1); }
  /// Returns the parameters of the norm before the head.
  NormWeights final_norm_weights() const;
  /// Returns the learned positions [max_positions, h]; a tensor without dims if the model has rotary positions.
  Tensor positions() const { return replicated(ParameterRole::positions, 0).first; }
  const ModelOptions& options() const { return options_; }

  /// Says that sequences of so many tokens will come, which counts for scalings of rotary positions that choose by the longest
  /// sequence of a run (longrope). Without it a batch chooses by its own length, where it was told of none longer. Returns the
  /// longest that it was told of. Collective in that all ranks of a replica must say the same.
  std::size_t expect(std::size_t sequence);

  /// Receives K (after RoPE) and V of this rank's tokens, [1, S_p, K/V heads, d]. The heads are all of the model's, or under
  /// tensor parallelism those that this rank's query heads read.
  using KvSink = std::function<void(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens)>;
  /// Runs one sequence through all blocks for its K and V alone, and calls `sink` once for each layer that has its own. Computes
  /// no logits. Throws Error(refused) for more tokens than the model has learned positions.
  void prefill(std::span<const Token> ids, const KvSink& sink);
  /// Returns the loss of a batch and keeps nothing for a backward pass. `logits` (may be null) is called for tiles of the logits,
  /// on the rank that computes them. The data axis need not divide the batch. Throws Error(refused).
  Loss evaluate(const TokenBatch& tokens, const LogitsSink* logits = nullptr);
  /// Returns the loss of a batch and computes the gradients of all parameters, replacing those of the last call. Does
  /// training_tasks() of 1f1b, so without a pipeline the activations of one micro-batch are in memory at a time. Throws
  /// Error(refused) if the model wasn't made for training, or the data axis times the number of micro-batches doesn't divide the
  /// batch.
  Loss forward_backward(const TokenBatch& tokens);
  /// Does the tasks of another list, in which several micro-batches may be under way at once, with the activations of each. The
  /// list must be as check_training_tasks() says; under a pipeline, those of all stages as check_pipeline() does. Loss and
  /// gradients have the same bits whatever the list, but for a tied embedding on one rank: there the head adds to its gradient in
  /// the forward pass already.
  Loss forward_backward(const TokenBatch& tokens, const TaskList& tasks);
  /// Returns the 2-norm of all gradients of the model, each parameter counted once. If `wish` isn't null, the same message also
  /// combines the ranks' flags: afterwards `*wish` is true on every rank if it was true on any.
  double gradient_norm(bool* wish = nullptr);
  /// Applies one AdamW update with the gradients scaled by the clip factor for `norm`, the result of gradient_norm().
  void update(const UpdateOptions& options, double norm);

  /// Numbers of tokens that have one of this rank's embedding rows (Vocabulary::rows_given()), on which the memory of a call
  /// depends: the largest of those micro-batches that run beside the same memory of others. Without a pipeline these are the
  /// first one, and the later ones, which hold gradients besides; on a stage with P − 1 behind it the first P − 1 and the last P
  /// − 1, each by itself, and those between.
  class RowsGiven {
   public:
    void note(const MicroBatch& of, const PipelineStage& stage, std::size_t rows);
    /// Returns the largest numbers; equally many for calls of equally many micro-batches.
    const std::vector<std::size_t>& most() const { return most_; }

   private:
    std::vector<std::size_t> most_;
  };
  /// Returns those of the last call; none before the first.
  const RowsGiven& rows_given() const { return rows_given_; }

  /// Payload bytes that this rank sent and received in the forward and backward passes of the last batch, by purpose. After an
  /// update that shares optimizer states, those of the updated weights count as the backward pass's.
  const TrafficCounters& forward_traffic() const { return forward_traffic_; }
  const TrafficCounters& backward_traffic() const { return backward_traffic_; }

 private:
  /// One micro-batch on its way through the model, from its first task to its last, and everything that is kept for it meanwhile:
  /// neither the model nor its parts have state of a pass, so several may be under way at once. Passes of one call have as many
  /// tokens, and share their layout. Whoever runs the tasks owns the pass, and drops it after the last.
  struct Pass {
    TokenBatch own;  // its sequences; where documents are dealt, in that order
    PackedDocuments documents;
    std::vector<Token> dealt_ids;  // what `own` views then
    std::vector<std::int64_t> dealt_labels;
    MicroBatch of;
    bool keep = false;                        // a backward pass follows
    double weight = 0;                        // 1 / number of predicted tokens in the whole batch
    LogitsSink logits;                        // takes rows by their numbers in the whole batch; empty: nobody wants them
    std::unique_ptr<Vocabulary> vocabulary;   // on stages that have neither embedding nor head none
    std::unique_ptr<OwnPacks> tables;         // of vocabulary, where data ranks have parts of them
    std::unique_ptr<Vocabulary> input_table;  // of the layers, in models that have inputs of their own, as the next
    std::optional<LayerInputs> inputs;
    std::unique_ptr<StrategyPass> sublayers;
    std::optional<DropoutDraws> draws;  // none: nothing is dropped
    std::vector<BlockSaved> blocks;     // by layer; empty if neither a backward pass nor another layer needs them
    OwnedTensor x;    // the residual [B, S_p, h] between tasks; in the end the last block's output, if the head is here
    OwnedTensor lse;  // log-sum-exp of the head's logits, [B·S_p]
    OwnedTensor d;    // gradient of the residual
    double loss = 0;  // this rank's part of the sum of losses

    Category kept() const { return keep ? Category::activations : Category::workspace; }
  };

  // The packs after those of the blocks (PackKind); last, if there are any, come biases.
  /// Number of the pack of replicated parameters of width h: norms of layer 0, …, last biases, final norm, learned positions.
  std::size_t replicated_pack() const { return 2 * options_.config.layers; }
  std::size_t embedding_pack() const { return replicated_pack() + 1; }
  /// Number of the head's pack; of the embedding's if the two are tied.
  std::size_t head_pack() const { return embedding_pack() + (options_.config.tied_embeddings ? 0 : 1); }
  /// Number of the pack of the table of layers' inputs. Precondition: the model has it.
  std::size_t inputs_pack() const { return head_pack() + 1; }
  bool has_layer_inputs() const { return options_.config.layer_input > 0; }
  /// Returns a replicated parameter and its gradient (no dims without training); both without dims if the model has no such
  /// parameter.
  std::pair<Tensor, Tensor> replicated(ParameterRole role, std::size_t layer) const;
  NormWeights norm(ParameterRole gain, ParameterRole bias, std::size_t layer) const;
  Bias bias(ParameterRole role, std::size_t layer) const;
  double output_scale(std::size_t layer) const;
  ReplicatedMatrix matrix(ParameterRole role, std::size_t layer) const;
  NormWeights norm_without_bias(ParameterRole gain, std::size_t layer) const;
  std::span<const std::uint32_t> learned_rows(const Pass& pass) const;
  void complete_embedding(const Tensor& x, std::span<const std::uint32_t> positions_of_rows);
  void sum_replicated_gradients();
  /// Returns whether this rank and one at the pipeline's other end have copies of the embedding.
  bool shares_embedding() const {
    return options_.config.tied_embeddings && stage_.count > 1 && (stage_.first() || stage_.last());
  }
  void sum_shared_embedding();
  void refuse_pipeline(std::string_view what) const;
  Communicator& stages() const { return mesh_.group({mesh_.layout().stage_axis()}); }
  /// Sequences of a batch that this rank's data rank computes together: all of its own, or those of a micro-batch.
  struct Part {
    std::size_t first;  // number of the first in the whole batch
    std::size_t count;
  };
  Part own_part(const TokenBatch& tokens) const;
  Loss begin_batch(const TokenBatch& tokens);
  Pass begin_pass(const TokenBatch& tokens, const Part& part, const MicroBatch& of, std::uint64_t predicted,
                  const LogitsSink* logits, bool keep);
  static void deal_tokens(Pass& pass);
  void end_forward(Loss& loss, const Pass& pass);
  void sum_losses(Loss& loss);
  BlockPass block_pass(Pass& pass) const;
  // The tasks.
  std::uint64_t stages_before(const ModelTask& task) const;
  void run(const ModelTask& task, Pass& pass);
  void begin_forward(Pass& pass);
  void begin_backward(Pass& pass);
  void end_backward(Pass& pass);
  void receive(Pass& pass, const ModelTask& task);
  void send(Pass& pass, const ModelTask& task);
  void embed(Pass& pass);
  void layers_forward(Pass& pass, const ModelTask& task);
  void head(Pass& pass);
  void head_backward(Pass& pass);
  void layers_backward(Pass& pass, const ModelTask& task);
  void embed_backward(Pass& pass);
  void reduce(Pass& last);
  void drop_embedding(const Pass& pass, const Tensor& x);
  void sum_over_world(std::span<double> values);
  void count_backward(const TrafficCounters& since);
  void check_tokens(const TokenBatch& tokens) const;
  void check_positions(std::size_t sequence) const;
  void set_layout(std::size_t batch, std::size_t sequence, bool packed = false);
  std::unique_ptr<Vocabulary> vocabulary_of(const MicroBatch& pass);
  std::unique_ptr<Vocabulary> vocabulary_with(const Vocabulary::Weights& weights, const MicroBatch& of);
  std::unique_ptr<Vocabulary> input_table_of(const MicroBatch& pass);
  OwnedTensor input_rows(Vocabulary& table, std::span<const Token> ids, Category kept);
  LayerInputs layer_inputs(OwnedTensor table_rows, const Tensor& x, Category kept, bool trains);
  Vocabulary::Weights of_model(Vocabulary::Weights tables) const;
  Bias head_bias() const;
  bool cuts_tables() const { return store_.is_cut(embedding_pack()); }
  bool has_vocabulary() const { return vocabulary_ranks_.size() == 1; }
  // Where data ranks share weights: give the vocabulary the tables that its next call needs.
  void use_embedding(Pass& pass);
  void use_head(Pass& pass);
  void use_head_gradient(Pass& pass);
  void use_embedding_gradient(Pass& pass);
  void use_input_table(Pass& pass);
  void use_input_gradient(Pass& pass);
  OwnedTensor final_norm(const Tensor& x);

  Rank& rank_;
  Mesh& mesh_;
  ModelOptions options_;
  PipelineStage stage_;
  Communicator& vocabulary_ranks_;  // those over which its rows are cut
  Chunks vocabulary_rows_;
  std::unique_ptr<const Strategy> strategy_;
  ParameterStore store_;
  Block block_;
  GradientSums sums_;
  PackRanks table_ranks_;                 // of the packs of vocabulary
  std::optional<Boundaries> boundaries_;  // of a pipeline
  std::optional<StageSums> stage_sums_;   // likewise
  std::unique_ptr<TokenLayout> layout_;
  std::size_t longest_ = 0;                       // sequence that expect() was told of
  HeadPlan head_plan_ = {};                       // of layout_'s tokens
  std::vector<std::uint32_t> positions_of_rows_;  // positions of this rank's residual rows; empty unless positions are learned
  Visits visits_;                                 // of the list of tasks that is under way
  RowsGiven rows_given_;
  TrafficCounters forward_traffic_;
  TrafficCounters backward_traffic_;
};

}  // namespace tsprun::detail
