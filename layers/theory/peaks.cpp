#include "layers/theory/peaks.h"

#include "core/kernels/flash.h"
#include "core/kernels/norm.h"
#include "core/kernels/optimizer.h"
#include "layers/kv_bucket.h"
#include "layers/model/vocabulary.h"
#include "layers/theory/memory.h"
#include "layers/theory/shards.h"
#include "layers/theory/traffic.h"
#include "layers/tsp/units.h"
#include "layers/zigzag.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace tsp::theory {

namespace {

/// Books bytes; they are given back when the booking goes.
class Books {
 public:
  class Booking {
   public:
    Booking() = default;
    Booking(Books& books, Category category, std::uint64_t bytes) : books_(&books), category_(category), bytes_(bytes) {
      books.add(category, bytes);
    }
    Booking(Booking&& other) noexcept
        : books_(std::exchange(other.books_, nullptr)), category_(other.category_), bytes_(other.bytes_) {}
    Booking& operator=(Booking&& other) noexcept {
      reset();
      books_ = std::exchange(other.books_, nullptr);
      category_ = other.category_;
      bytes_ = other.bytes_;
      return *this;
    }
    ~Booking() { reset(); }
    void reset() {
      if (books_ != nullptr) books_->take(category_, bytes_);
      books_ = nullptr;
    }

   private:
    Books* books_ = nullptr;
    Category category_ = Category::workspace;
    std::uint64_t bytes_ = 0;
  };

  void add(Category category, std::uint64_t bytes) {
    now_[category] += bytes;
    now_.total += bytes;
    peaks_[category] = std::max(peaks_[category], now_[category]);
    peaks_.total = std::max(peaks_.total, now_.total);
  }
  void take(Category category, std::uint64_t bytes) {
    now_[category] -= bytes;
    now_.total -= bytes;
  }
  const CategoryBytes& peaks() const { return peaks_; }

 private:
  CategoryBytes now_;
  CategoryBytes peaks_;
};

using Booking = Books::Booking;

/// The walk through one step. Names are those of the schedule.
class Walk {
 public:
  Walk(const Setting& setting, int ranks, int rank, const PeakOptions& options)
      : setting_(setting),
        model_(setting.model),
        options_(options),
        D_(ranks),
        p_(rank),
        shards_(setting.model, ranks),
        cut_(setting.sequence, ranks),
        local_(cut_.tokens(rank)),
        rows_(setting.batch * local_),
        element_(setting.bytes.element),
        sum_(setting.bytes.accumulated),
        plan_(plan_units(shards_.heads(), model_.kv_heads, bucket_heads())),
        turns_(static_cast<std::size_t>(ranks)) {}

  CategoryBytes step() {
    const std::uint64_t held = shards_.total(p_);
    const Booking parameters = book(Category::parameters, held * element_);
    const Booking gradients = book(Category::gradients, held * sum_);
    const Booking optimizer = book(Category::optimizer, held * sum_ * (element_ < sum_ ? 3 : 2));
    const Booking rope = work(local_ * model_.head_dim * sum_);
    forward();
    backward();
    workspace(kernels::sum_of_squares_workspace(static_cast<std::size_t>(largest_part())));
    return books_.peaks();
  }

 private:
  struct Turn {
    Booking W_KVQ, W_O, q, k, v, o, lse, dO, dq, dW_KV;
    std::size_t unfinished = 0;
  };
  struct Gathered {
    Booking kv, dkv;
  };

  Booking book(Category category, std::uint64_t bytes) { return {books_, category, bytes}; }
  Booking work(std::uint64_t bytes) { return book(Category::workspace, bytes); }
  Booking message(std::uint64_t bytes) { return book(Category::communication, bytes); }
  Booking keep(std::uint64_t bytes) { return book(Category::activations, bytes); }
  /// What kernels work in grows and stays.
  void workspace(std::size_t bytes) {
    if (bytes <= workspace_bytes_) return;
    workspace_.reset();
    workspace_ = work(bytes);
    workspace_bytes_ = bytes;
  }

  std::size_t bucket_heads() const {
    if (options_.kv_bucket_heads != 0) return options_.kv_bucket_heads;
    return kv_bucket_heads(setting_.batch, setting_.sequence, model_.head_dim, size_of(options_.dtype), model_.kv_heads);
  }
  std::uint64_t hidden() const { return rows_ * model_.hidden; }
  std::uint64_t kv_rows(int r) const { return shards_.heads().kv_heads_owned(r).count * model_.head_dim; }
  std::uint64_t q_rows() const { return model_.query_width() / static_cast<std::uint64_t>(D_); }
  std::uint64_t f(int r) const { return shards_.mlp_rows().count(r); }
  std::uint64_t V(int r) const { return shards_.vocabulary_rows().count(r); }
  int behind(int r) const { return (r + D_ - 1) % D_; }
  std::uint64_t largest_part() const {
    return std::max({model_.hidden * std::max({q_rows(), kv_rows(p_), f(p_), V(p_)}), model_.hidden});
  }
  std::uint64_t asked() const {
    if (!options_.rows_asked.empty()) return options_.rows_asked.at(static_cast<std::size_t>(p_));
    return setting_.tokens() * V(p_) / std::max<std::uint64_t>(model_.vocabulary, 1);
  }
  bool keeps_qkv() const { return setting_.recompute == Recompute::none; }
  bool keeps_o() const { return setting_.recompute != Recompute::full; }

  // --- attention

  void fetch(int r, bool backward) {
    Turn& turn = turns_[static_cast<std::size_t>(r)];
    fetched_ = r + 1;
    if (r == p_) return;
    const std::uint64_t first = 2 * kv_rows(r) + (backward ? 0 : q_rows());
    const std::uint64_t second = q_rows() + (backward ? q_rows() : 0);
    turn.W_KVQ = message(first * model_.hidden * element_);
    turn.W_O = message(second * model_.hidden * element_);
  }
  void begin(bool backward) {
    fetched_ = 0;
    for (int r = 0; r < std::min(2, D_); ++r) fetch(r, backward);
  }

  void prepare(std::vector<Gathered>& gathered, const TspUnit& unit, bool backward) {
    Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
    if (unit.first_of_turn) {
      if (!keeps_qkv()) {
        turn.q = work(rows_ * q_rows() * element_);
        turn.k = work(rows_ * kv_rows(unit.turn) * element_);
        turn.v = work(rows_ * kv_rows(unit.turn) * element_);
      }
      if (!keeps_o()) {
        turn.o = work(rows_ * q_rows() * element_);
        turn.lse = work(rows_ * q_rows() / model_.head_dim * sum_);
      }
      if (!backward) turn.W_KVQ.reset();
      if (fetched_ == unit.turn + 1 && fetched_ < D_) fetch(fetched_, backward);
    }
    if (unit.first_of_bucket) gathered[unit.bucket].kv = message(bucket_elements(unit.bucket) * element_);
    if (unit.last_of_turn) {
      turn.k.reset();
      turn.v.reset();
    }
  }
  std::uint64_t bucket_elements(std::size_t bucket) const {
    return 2 * setting_.tokens() * plan_.buckets[bucket].heads.count * model_.head_dim;
  }

  void attention_forward() {
    workspace(kernels::flash_forward_workspace(options_.dtype, model_.head_dim, options_.threads));
    std::vector<Gathered> gathered(plan_.buckets.size());
    const auto& units = plan_.units;
    prepare(gathered, units[0], false);
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (u + 1 < units.size()) prepare(gathered, units[u + 1], false);
      if (units[u].last_of_bucket) gathered[units[u].bucket] = {};
      if (units[u].last_of_turn) turns_[static_cast<std::size_t>(units[u].turn)] = {};
    }
  }

  void attention_backward() {
    workspace(kernels::flash_backward_workspace(options_.dtype, model_.head_dim, options_.threads));
    std::vector<Gathered> gathered(plan_.buckets.size());
    std::deque<std::size_t> scattering;
    const auto& units = plan_.units;
    prepare(gathered, units[0], true);
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (u + 1 < units.size()) prepare(gathered, units[u + 1], true);
      const std::size_t begun = scattering.size();
      compute_backward(gathered, units[u], scattering);
      if (u == 0) settle_mlp();
      for (std::size_t i = 0; i < begun; ++i) {
        finish_bucket(gathered, scattering.front());
        scattering.pop_front();
      }
    }
    for (const std::size_t bucket : scattering) finish_bucket(gathered, bucket);
  }

  void compute_backward(std::vector<Gathered>& gathered, const TspUnit& unit, std::deque<std::size_t>& scattering) {
    Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
    if (unit.first_of_turn) {
      turn.dO = work(rows_ * q_rows() * element_);
      turn.dq = work(rows_ * q_rows() * sum_);
    }
    if (unit.first_of_bucket) gathered[unit.bucket].dkv = message(bucket_elements(unit.bucket) * sum_);
    { const Booking delta = work(rows_ * unit.queries.count * sum_); }
    if (unit.last_of_bucket) {
      gathered[unit.bucket].kv.reset();
      scattering.push_back(unit.bucket);
    }
    if (!unit.last_of_turn) return;
    turn.dO.reset();
    turn.W_O.reset();
    send_home(gradient_shard(unit.turn, 2 * q_rows()), 2 * q_rows());
    turn.dq.reset();
    turn.q.reset();
    turn.o.reset();
    turn.lse.reset();
  }

  void finish_bucket(std::vector<Gathered>& gathered, std::size_t bucket) {
    const auto& [owner, heads] = plan_.buckets[bucket];
    Turn& turn = turns_[static_cast<std::size_t>(owner)];
    if (turn.unfinished == 0) {
      turn.unfinished = static_cast<std::size_t>(
          std::ranges::count_if(plan_.buckets, [owner = owner](const TspBucket& other) { return other.owner == owner; }));
      turn.dW_KV = gradient_shard(owner, 2 * kv_rows(owner));
    }
    { const Booking own = work(rows_ * heads.count * model_.head_dim * sum_); }
    gathered[bucket] = {};
    if (--turn.unfinished > 0) return;
    send_home(std::move(turn.dW_KV), kv_rows(owner));
    turn.W_KVQ.reset();
  }

  Booking gradient_shard(int r, std::uint64_t rows) {
    constexpr std::size_t kOnTheirWay = 2;
    while (going_home_.size() > kOnTheirWay) going_home_.pop_front();
    return r == p_ ? Booking() : message(rows * model_.hidden * sum_);
  }
  void send_home(Booking shard, std::uint64_t rows) {
    if (rows > 0) going_home_.push_back(std::move(shard));
  }

  // --- shards that travel round

  /// Calls visit(step, shard) with the weights that are here booked.
  template <class Visit>
  void ring(const Chunks& rows, std::uint64_t matrices, Visit&& visit) {
    Booking here;
    int shard = p_;
    for (int t = 0; t < D_; ++t) {
      Booking next;
      if (t + 1 < D_) next = message(matrices * rows.count(behind(shard)) * model_.hidden * element_);
      visit(t, shard);
      here = std::move(next);
      shard = behind(shard);
    }
  }
  /// Sums of gradients behind them.
  void sum_begins(int t, std::uint64_t rows) {
    if (t == 0) return;
    ring_part_.reset();
    ring_part_ = message(rows * model_.hidden * sum_);
  }
  void sum_passes_on(int t, std::uint64_t next_rows) {
    if (t == 0) return;
    ring_arriving_.reset();
    ring_arriving_ = message(next_rows * model_.hidden * sum_);
  }
  void settle_ring() {
    ring_arriving_.reset();
    ring_part_.reset();
  }
  void settle_mlp() { settle_ring(); }

  void mlp_forward(bool last_layer) {
    ring(shards_.mlp_rows(), 3, [&](int t, int shard) {
      if (t + 1 == D_ && !last_layer) begin(false);
      Booking gate, up;
      if (!keeps_qkv()) {
        gate = work(rows_ * f(shard) * element_);
        up = work(rows_ * f(shard) * element_);
      }
      const Booking a = work(rows_ * f(shard) * element_);
    });
  }

  void mlp_backward() {
    ring(shards_.mlp_rows(), 3, [&](int t, int shard) {
      if (t + 1 == D_) begin(true);
      Booking gate, up;
      if (!keeps_qkv()) {
        gate = work(rows_ * f(shard) * element_);
        up = work(rows_ * f(shard) * element_);
      }
      Booking dgate = work(rows_ * f(shard) * sum_);
      Booking dup = work(rows_ * f(shard) * sum_);
      sum_begins(t, 3 * f(shard));
      dgate.reset();
      dup.reset();
      const Booking a = work(rows_ * f(shard) * element_);
      sum_passes_on(t, 3 * f(behind(shard)));
    });
  }

  // --- the model around it

  struct LayerSaved {
    Booking x1, x2, attention, mlp;
  };

  void forward() {
    begin(false);
    Booking x = keep(hidden() * element_);
    tokens_ = keep(rows_ * kTokenBytes);
    {
      const Booking out = message(asked() * model_.hidden * element_);
      const Booking in = message(hidden() * element_);
    }
    const std::uint64_t inputs = 2 * model_.hidden * element_;
    const std::uint64_t mlp = keeps_qkv() ? 2 * model_.intermediate * element_ : 0;
    for (std::size_t layer = 0; layer < model_.layers; ++layer) {
      LayerSaved saved;
      saved.attention = keep(rows_ * (saved_bytes_per_token(setting_) - inputs - mlp));
      saved.mlp = keep(rows_ * mlp);
      saved.x1 = std::move(x);
      {
        const Booking y = work(hidden() * sum_);
        {
          const Booking normed = work(hidden() * element_);
          attention_forward();
        }
        saved.x2 = keep(hidden() * element_);
      }
      const Booking y = work(hidden() * sum_);
      {
        const Booking normed = work(hidden() * element_);
        mlp_forward(layer + 1 == model_.layers);
      }
      x = keep(hidden() * element_);
      saved_.push_back(std::move(saved));
    }
    x_ = std::move(x);
    lse_ = keep(rows_ * sum_);
    const Booking normed = work(hidden() * element_);
    head_forward();
  }

  std::uint64_t tile(std::uint64_t rows, std::uint64_t ids) const {
    const DType sums = sum_ == 8 ? DType::f64 : DType::f32;
    return std::min<std::uint64_t>(logit_tile_rows(static_cast<std::size_t>(ids), sums), rows) * ids * sum_;
  }

  void head_forward() {
    if (head_plan(setting_) == HeadPlan::rotate_weights) {
      const Booking vectors = work(3 * rows_ * sum_);
      ring(shards_.vocabulary_rows(), 1, [&](int, int shard) { const Booking logits = work(tile(rows_, V(shard))); });
      return;
    }
    const std::uint64_t all = setting_.tokens();
    gathered_x_ = message(all * model_.hidden * element_);
    const Booking vectors = message(3 * all * sum_);
    { const Booking logits = work(tile(all, V(p_))); }
    const Booking parts = message(static_cast<std::uint64_t>(D_) * rows_ * sum_);
    gathered_lse_ = message(all * sum_);
  }

  void head_backward() {
    if (head_plan(setting_) == HeadPlan::rotate_weights) {
      ring(shards_.vocabulary_rows(), 1, [&](int t, int shard) {
        sum_begins(t, V(shard));
        { const Booking logits = work(tile(rows_, V(shard))); }
        sum_passes_on(t, V(behind(shard)));
      });
      settle_ring();
      return;
    }
    const std::uint64_t all = setting_.tokens();
    const Booking dx = message(all * model_.hidden * sum_);
    { const Booking logits = work(tile(all, V(p_))); }
    gathered_x_.reset();
    gathered_lse_.reset();
  }

  void backward() {
    const Booking d = work(hidden() * sum_);
    {
      const Booking dx = work(hidden() * sum_);
      {
        const Booking normed = work(hidden() * element_);
        head_backward();
      }
      workspace(kernels::norm_backward_workspace());
    }
    x_.reset();
    lse_.reset();
    while (!saved_.empty()) {
      LayerSaved saved = std::move(saved_.back());
      saved_.pop_back();
      going_home_.clear();
      {
        const Booking dx = work(hidden() * sum_);
        const Booking normed = work(hidden() * element_);
        mlp_backward();
      }
      saved.mlp.reset();
      saved.x2.reset();
      const Booking dx = work(hidden() * sum_);
      const Booking normed = work(hidden() * element_);
      attention_backward();
    }
    const Booking out = message(hidden() * sum_);
    const Booking in = message(asked() * model_.hidden * sum_);
  }

  Setting setting_;
  ModelConfig model_;
  PeakOptions options_;
  int D_;
  int p_;
  TspShards shards_;
  Zigzag cut_;
  std::uint64_t local_;
  std::uint64_t rows_;
  std::uint64_t element_;
  std::uint64_t sum_;
  TspUnits plan_;

  Books books_;
  std::size_t workspace_bytes_ = 0;
  Booking workspace_;
  std::vector<Turn> turns_;
  int fetched_ = 0;
  std::deque<Booking> going_home_;
  Booking ring_part_, ring_arriving_;
  Booking tokens_, x_, lse_, gathered_x_, gathered_lse_;
  std::vector<LayerSaved> saved_;
};

}  // namespace

CategoryBytes tsp_training_peaks(const Setting& setting, int ranks, int rank, const PeakOptions& options) {
  return Walk(setting, ranks, rank, options).step();
}

}  // namespace tsp::theory
