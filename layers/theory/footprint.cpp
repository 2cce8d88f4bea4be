#include "layers/theory/footprint.h"

#include "core/collectives/chunks.h"
#include "core/kernels/flash.h"
#include "layers/kv_bucket.h"
#include "layers/model/vocabulary.h"
#include "layers/theory/peaks.h"
#include "layers/theory/traffic.h"
#include "layers/zigzag.h"

#include <algorithm>

namespace tsp::theory {

namespace {

DType dtype_of(const ElementBytes& bytes) {
  if (bytes.element == 8) return DType::f64;
  return bytes.element == 2 ? DType::bf16 : DType::f32;
}

/// Bytes in flight during one step of the schedule.
struct InFlight {
  std::uint64_t communication = 0;
  std::uint64_t workspace = 0;
  std::uint64_t total() const { return communication + workspace; }
};

/// The backward pass of each part of the model: it needs more than the forward pass.
class Visits {
 public:
  Visits(const Setting& setting, const Spread& spread, Place place)
      : setting_(replica_setting(setting, spread)),
        model_(setting.model),
        spread_(spread),
        place_(place),
        heads_(model_, spread.tensors(), 1),
        T_(spread.tensors()),
        D_(spread.token_ranks()),
        e_(setting.bytes.element),
        a_(setting.bytes.accumulated),
        rows_(setting_.batch * Zigzag(setting_.sequence, D_).tokens(place.p)),
        kept_rows_(kept_rows(setting, spread, place)) {}

  InFlight attention() const {
    const std::uint64_t d = model_.head_dim;
    const std::uint64_t n_q = heads_.queries(place_.t, 0).count;
    const std::uint64_t n_kv = heads_.kv_read_by(place_.t);
    const std::uint64_t parts = folded() ? static_cast<std::uint64_t>(D_) : 1;
    const std::uint64_t all = setting_.tokens();
    InFlight bytes;
    bytes.workspace = around() + rows_ * d * (n_q / parts * (3 * e_ + a_) + share(n_kv, parts) * 2 * (e_ + a_));
    bytes.communication = exchange();
    if (spread_.zero3()) bytes.communication += weights(setting_.attention_parameters());
    if (folded()) {
      const std::uint64_t shard = 2 * model_.hidden * d * share(n_q + n_kv, parts);
      bytes.communication += shard * (3 * e_ + 2 * a_);
      const std::size_t bucket =
          std::min<std::size_t>(kv_bucket_heads(setting_.batch, setting_.sequence, d, e_, n_kv), share(n_kv, parts));
      bytes.communication += 2 * 2 * all * bucket * d * (e_ + a_);
      return bytes;
    }
    if (D_ == 1) return bytes;
    const std::uint64_t kv = 2 * all * n_kv * d;
    if (spread_.zero3() || spread_.sequence == SequenceExchange::gather) {
      const std::uint64_t bucket =
          std::min<std::uint64_t>(kv_bucket_heads(setting_.batch, setting_.sequence, d, e_, n_kv), share(n_kv, 2));
      bytes.communication += 2 * 2 * all * bucket * d * (e_ + a_);
    } else if (spread_.sequence == SequenceExchange::ring) {
      bytes.communication += share(kv, static_cast<std::uint64_t>(D_)) * (3 * e_ + 4 * a_);
    } else {
      const HeadGrid grid(model_, T_, D_);
      bytes.communication +=
          all * d *
          (n_q / static_cast<std::uint64_t>(D_) * (3 * e_ + a_) + grid.kv_read(place_.t, place_.p).count * 2 * (e_ + a_));
    }
    return bytes;
  }

  InFlight mlp() const {
    std::uint64_t f = Chunks::balanced(T_, model_.intermediate).count(place_.t);
    if (folded()) f = share(f, static_cast<std::uint64_t>(D_));
    InFlight bytes;
    const std::uint64_t again = setting_.recompute == Recompute::none ? 0 : 2 * e_;
    bytes.workspace = around() + rows_ * f * (2 * a_ + e_ + again);
    bytes.communication = exchange();
    if (spread_.zero3()) bytes.communication += weights(setting_.mlp_parameters());
    if (folded()) bytes.communication += 3 * model_.hidden * f * (3 * e_ + 2 * a_);
    return bytes;
  }

  InFlight head() const {
    const std::uint64_t h = model_.hidden;
    InFlight bytes;
    const int ranks = spread_.vocabulary_ranks();
    std::uint64_t V = share(model_.vocabulary, static_cast<std::uint64_t>(ranks));
    std::uint64_t tokens = kept_rows_;
    if ((T_ == 1 || spread_.cuts_kept_tokens()) && ranks > 1) {
      if (head_plan(setting_) == HeadPlan::rotate_weights) {
        bytes.communication = V * h * (2 * e_ + 2 * a_);
      } else {
        tokens = setting_.tokens();
        bytes.communication = tokens * (h * (e_ + a_) + 3 * a_);
      }
    } else if (T_ > 1) {
      bytes.communication = exchange();
      if (folded()) bytes.communication += V * h * (2 * e_ + 2 * a_);
    }
    const DType sums = a_ == 8 ? DType::f64 : DType::f32;
    bytes.workspace = around() + std::min<std::uint64_t>(logit_tile_rows(static_cast<std::size_t>(V), sums), tokens) * V * a_;
    return bytes;
  }

  InFlight largest() const {
    return std::max({attention(), mlp(), head()}, [](const InFlight& a, const InFlight& b) { return a.total() < b.total(); });
  }

 private:
  bool folded() const { return spread_.folded(); }
  static std::uint64_t share(std::uint64_t whole, std::uint64_t parts) { return (whole + parts - 1) / parts; }
  /// The residual's gradient, the sublayer's result, its normed input.
  std::uint64_t around() const { return kept_rows_ * model_.hidden * (2 * a_ + e_); }
  /// What tp sums or gathers.
  std::uint64_t exchange() const {
    if (T_ == 1) return 0;
    const std::uint64_t x = rows_ * model_.hidden;
    return spread_.cuts_kept_tokens() ? x * (e_ + a_) : x * a_;
  }
  /// Two whole sublayers of which the larger is the MLP's as a rule, and gradients of this one.
  std::uint64_t weights(std::uint64_t parameters) const { return setting_.block_parameters() * e_ + parameters * a_; }

  Setting setting_;
  const ModelConfig& model_;
  const Spread& spread_;
  Place place_;
  HeadGrid heads_;
  int T_;
  int D_;
  std::uint64_t e_;
  std::uint64_t a_;
  std::uint64_t rows_;
  std::uint64_t kept_rows_;
};

}  // namespace

CategoryBytes footprint(const Setting& setting, const Spread& spread, Place place, const FootprintOptions& options) {
  const Setting replica = replica_setting(setting, spread);
  const DType dtype = dtype_of(setting.bytes);
  const int D = spread.token_ranks();
  if (spread.tensors() == 1 && (D == 1 || spread.folded())) {
    return tsp_training_peaks(replica, D, place.p,
                              {.threads = options.threads, .kv_bucket_heads = 0, .dtype = dtype, .rows_asked = {}});
  }
  CategoryBytes bytes = persistent(setting, spread, place, kTokenBytes);
  const InFlight most = Visits(setting, spread, place).largest();
  bytes[Category::communication] = most.communication;
  bytes[Category::workspace] =
      most.workspace + kernels::flash_backward_workspace(dtype, setting.model.head_dim, options.threads) +
      Zigzag(setting.sequence, D).tokens(place.p) * setting.model.head_dim * setting.bytes.accumulated;  // RoPE's angles
  bytes.total += bytes[Category::communication] + bytes[Category::workspace];
  return bytes;
}

}  // namespace tsp::theory
