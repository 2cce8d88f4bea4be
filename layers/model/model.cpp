// Makes the packs of all parameters, finds them for the passes (model_passes.cpp), and applies the optimizer.
#include "layers/model/model.h"

#include "core/kernels/check.h"
#include "core/trace/recorder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace tsprun::detail {

std::vector<PackPlan> model_packs(const ModelConfig& config, Mesh& mesh) {
  return Placement(config, mesh.layout(), mesh.world().rank()).packs(model_parameters(config));
}

Model::Model(Rank& rank, Mesh& mesh, const ModelOptions& options)
    : rank_(rank),
      mesh_(mesh),
      options_(options),
      stage_(mesh.layout().stage(options.config.layers, mesh.world().rank())),
      vocabulary_ranks_(mesh.group(mesh.layout().axes_of_vocabulary())),
      vocabulary_rows_(vocabulary_cut(options.config, mesh.layout())),
      strategy_(make_strategy(rank, mesh,
                              {.config = options.config, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads})),
      store_(rank, options.dtype, model_packs(options.config, mesh), options.training),
      block_(rank, *strategy_, options.config, options.dtype, options.recompute),
      sums_(rank, mesh.group(summed_over(mesh.layout(), PackKind::attention).sharers),
            mesh.group(summed_over(mesh.layout(), PackKind::attention).data), store_),
      table_ranks_(PackRanks::of(mesh, PackKind::embedding)) {
  if (stage_.count == 1) return;
  boundaries_.emplace(rank, stages());
  stage_sums_.emplace(rank, stages(), options.config, mesh.layout());
}

// --- parameters --------------------------------------------------------------------------------------------------------------

Token Model::first_own_id() const {
  return static_cast<Token>(std::min(vocabulary_rows_.offset(vocabulary_ranks_.rank()), options_.config.vocabulary - 1));
}

/// Adds to tables what the model makes of them: whether they are tied, the head's bias, and the cap of logits.
Vocabulary::Weights Model::of_model(Vocabulary::Weights tables) const {
  tables.tied = options_.config.tied_embeddings && stage_.count == 1;
  tables.logit_cap = options_.config.logit_cap;
  if (options_.config.head_bias) tables.head_bias = head_bias();
  return tables;
}

Bias Model::head_bias() const {
  const auto [values, gradient] = replicated(ParameterRole::head_bias, 0);
  return {values.reshaped({values.size(0)}), gradient.dims() == 0 ? Tensor() : gradient.reshaped({gradient.size(0)})};
}

Vocabulary::Weights Model::vocabulary_weights() const {
  Vocabulary::Weights weights =
      of_model({.embedding = store_.values(embedding_pack(), 0, 1), .head = store_.values(head_pack(), 0, 1)});
  if (options_.training) {
    weights.embedding_gradient = store_.gradients(embedding_pack(), 0, 1);
    weights.head_gradient = store_.gradients(head_pack(), 0, 1);
  }
  return weights;
}

std::pair<Tensor, Tensor> Model::replicated(ParameterRole role, std::size_t layer) const {
  for (const ParameterPart& part : store_.parts()) {
    if (part.plan.parameter.role == role && part.plan.parameter.layer == layer) return {part.value, part.gradient};
  }
  return {};
}

NormWeights Model::norm(ParameterRole gain, ParameterRole bias, std::size_t layer) const {
  const Bias of_gain = this->bias(gain, layer);
  const Bias of_bias = this->bias(bias, layer);
  return {of_gain.values, of_bias.values, of_gain.gradient, of_bias.gradient};
}

/// Returns any replicated vector [h] and its gradient.
Bias Model::bias(ParameterRole role, std::size_t layer) const {
  const auto [values, gradient] = replicated(role, layer);
  const auto row = [](const Tensor& part) { return part.dims() == 0 ? Tensor() : part.select(0, 0); };
  return {row(values), row(gradient)};
}

BlockVectors Model::vectors(std::size_t layer) const {
  return {.attention = norm(ParameterRole::attention_norm, ParameterRole::attention_norm_bias, layer),
          .mlp = norm(ParameterRole::mlp_norm, ParameterRole::mlp_norm_bias, layer),
          .post_attention = norm(ParameterRole::post_attention_norm, ParameterRole::post_attention_norm_bias, layer),
          .post_mlp = norm(ParameterRole::post_mlp_norm, ParameterRole::post_mlp_norm_bias, layer),
          .attention_output = bias(ParameterRole::output_bias, layer),
          .mlp_output = bias(ParameterRole::down_bias, layer),
          .input = {.gate = matrix(ParameterRole::input_gate, layer),
                    .result = matrix(ParameterRole::input_result, layer),
                    .norm = norm_without_bias(ParameterRole::post_input_norm, layer)},
          .output_scale = output_scale(layer)};
}

InputWeights Model::input_weights() const {
  const auto column = [](const Tensor& part) { return part.dims() == 0 ? Tensor() : part.reshaped({part.size(0)}); };
  const auto [gain, gradient] = replicated(ParameterRole::layer_input_norm, 0);
  // Ranks of tp that have the same tokens have the same gradient, and biases' gradients are summed over them.
  const Layout& layout = mesh_.layout();
  const bool adds = layout.slices_tokens() || mesh_.place(layout.tensor_axis()) == 0;
  return {.projection = matrix(ParameterRole::layer_input_projection, 0),
          .gain = column(gain),
          .gain_gradient = column(gradient),
          .adds_to_gain = adds};
}

/// Returns a matrix that every rank has.
ReplicatedMatrix Model::matrix(ParameterRole role, std::size_t layer) const {
  const auto [values, gradient] = replicated(role, layer);
  return {values, gradient};
}

NormWeights Model::norm_without_bias(ParameterRole gain, std::size_t layer) const {
  const Bias of_gain = bias(gain, layer);
  return {.gain = of_gain.values, .bias = {}, .gain_gradient = of_gain.gradient, .bias_gradient = {}};
}

/// Returns the number by which a layer's output is multiplied.
double Model::output_scale(std::size_t layer) const {
  if (!options_.config.layer(layer).scales_output || rank_.is_phantom()) return 1;
  return kernels::element<double>(kernels::row_of(ConstTensor(replicated(ParameterRole::output_scale, layer).first), 0), 0);
}

NormWeights Model::final_norm_weights() const { return norm(ParameterRole::final_norm, ParameterRole::final_norm_bias, 0); }

// --- optimizer ---------------------------------------------------------------------------------------------------------------

double Model::gradient_norm(bool* wish) {
  const TraceSpan span(rank_.trace(), "gradient norm");
  const std::vector<double> squares = sums_.squares();
  const double mine = stage_sums_ ? stage_sums_->sum(squares) : std::accumulate(squares.begin(), squares.end(), 0.0);
  std::array<double, 2> sums = {mine, wish != nullptr && *wish ? 1.0 : 0.0};
  sum_over_world(sums);
  if (wish != nullptr) *wish = sums[1] > 0;
  return std::sqrt(sums[0]);
}

void Model::update(const UpdateOptions& options, double norm) {
  const TraceSpan span(rank_.trace(), "update");
  kernels::AdamW step{.learning_rate = options.learning_rate,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .epsilon = options.epsilon,
                      .weight_decay = 0,
                      .step = options.step,
                      .gradient_scale = kernels::clip_factor(norm, options.clip)};
  const TrafficCounters before = rank_.context().traffic();
  for (std::size_t pack = 0; pack < store_.packs(); ++pack) {
    for (const ParameterPart& part : store_.states(pack)) {
      step.weight_decay = traits_of(part.plan.parameter.role).decays() ? options.weight_decay : 0;
      rank_.compute().adamw(step, part.value, part.master, part.m, part.v, part.gradient);
    }
    sums_.gather_weights(pack);
  }
  sums_.finish();
  count_backward(before);
}

}  // namespace tsprun::detail
