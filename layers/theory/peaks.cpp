#include "layers/theory/peaks.h"

#include "core/kernels/check.h"
#include "layers/decode.h"
#include "layers/model/model.h"
#include "layers/model/single_block.h"
#include "transport/cause.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tsp::theory {

namespace {

/// A rank that isn't there, and its place on a mesh.
struct Phantom {
  Context context;
  Rank rank;
  Mesh mesh;

  Phantom(const MeshSetting& of, int number, const PeakOptions& options)
      : context(Context::phantom(number, of.shape.ranks(), options.budget)),
        rank(context, {.threads = options.threads, .trace = nullptr}),
        mesh(context.world(), of.shape) {}
};

ModelOptions model_options(const MeshSetting& of, const PeakOptions& options) {
  return {.config = of.setting.model,
          .dtype = of.setting.bytes.dtype(),
          .recompute = of.setting.recompute,
          .training = options.training,
          .kv_bucket_heads = options.kv_bucket_heads,
          .exchange = of.exchange};
}

}  // namespace

CategoryBytes peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids, const PeakOptions& options) {
  const Setting& setting = of.setting;
  Phantom phantom(of, rank, options);
  Model model(phantom.rank, phantom.mesh, model_options(of, options));
  model.parameters().fill_fresh(setting.model.layers, 0);
  const std::vector<std::int64_t> labels(ids.size(), 0);
  const TokenBatch tokens{.batch = setting.batch, .sequence = setting.sequence, .ids = ids, .labels = labels};
  for (std::size_t pass = 0; pass < std::min<std::size_t>(options.passes, 2); ++pass) {
    if (options.training) {
      model.forward_backward(tokens);
      model.update({}, model.gradient_norm());
    } else {
      model.evaluate(tokens);
    }
  }
  return phantom.rank.memory_peaks();
}

CategoryBytes peaks_of_fullest(const MeshSetting& of, const PeakOptions& options) { return peaks(of, fullest(of), {}, options); }

bool fits(const MeshSetting& of, const PeakOptions& options) {
  const int most = fullest(of);
  std::vector<int> ranks = {most};
  for (int rank = 0; rank < std::min(of.shape.tensor * of.shape.sequence, kMostAsked); ++rank) {
    if (rank != most) ranks.push_back(rank);
  }
  const std::vector<std::int32_t> alike(of.setting.tokens(), 0);
  try {
    for (const int rank : ranks) {
      peaks(of, rank, {}, options);
      peaks(of, rank, alike, options);
    }
  } catch (const Error& error) {
    if (error.cause() != Cause::out_of_memory) throw;
    return false;
  }
  return true;
}

CategoryBytes decoding_peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids, std::size_t prompt,
                             const PeakOptions& options) {
  Phantom phantom(of, rank, options);
  Model model(phantom.rank, phantom.mesh, model_options(of, options));
  model.parameters().fill_fresh(of.setting.model.layers, 0);
  Decoder decoder(phantom.rank, model, ids.size());
  decoder.prompt(ids.first(prompt));
  for (const std::int32_t id : ids.subspan(prompt)) decoder.step(id);
  return phantom.rank.memory_peaks();
}

CategoryBytes block_peaks(const MeshSetting& of, int rank, const PeakOptions& options) {
  const DType dtype = of.setting.bytes.dtype();
  Phantom phantom(of, rank, options);
  SingleBlock block(phantom.rank, phantom.mesh, model_options(of, options), of.setting.batch, of.setting.sequence);
  block.parameters().fill_fresh(of.setting.model.layers, 0);
  OwnedTensor y = block.forward(block.residual(block.kept(), dtype, "x"));
  if (options.training) {
    y.reset();
    block.backward(block.residual(Category::workspace, kernels::summed_in(dtype), "dy"));
  }
  return phantom.rank.memory_peaks();
}

}  // namespace tsp::theory
