// Reads the windows of a step into ids and labels.
#include "launcher/model/training_batch.h"

namespace tsprun::detail::launcher {

TrainingBatch::TrainingBatch(const ModelCommandOptions& options)
    : options_(options),
      stream_(options.stream()),
      ids_(options.batch * options.sequence),
      labels_(ids_.size()),
      window_(options.sequence + 1) {}

TokenBatch TrainingBatch::of_step(std::uint64_t step) {
  const std::size_t S = options_.sequence;
  for (std::size_t b = 0; b < options_.batch; ++b) {
    const std::uint64_t first = options_.whole_epochs
                                    ? epoch_offset(stream_.size(), S, options_.seed, (step - 1) * options_.batch + b)
                                    : training_offset(stream_.size(), S, options_.seed, step, b);
    stream_.read(first, window_);
    for (std::size_t s = 0; s < S; ++s) {
      ids_[b * S + s] = window_[s];
      labels_[b * S + s] = window_[s + 1];
    }
  }
  if (options_.document_end) unlabel_ends(labels_, ids_, *options_.document_end);
  return {.batch = options_.batch,
          .sequence = S,
          .ids = ids_,
          .labels = labels_,
          .document_end = options_.document_end,
          .seed = options_.seed,
          .step = step,
          .micro_batches = options_.micro_batches};
}

}  // namespace tsprun::detail::launcher
