// Moves keys and values from the ranks that computed them to those that cache their positions.
#include "layers/model/kv_cache.h"

#include <cstdint>
#include <utility>

namespace tsprun::detail {

namespace {

const CallOptions kCache{.stream = Stream::kv, .purpose = Purpose::kv};

}  // namespace

KvCache::KvCache(Rank& rank, Communicator& sequence, const ModelConfig& config, DType dtype, ByLayer<CachedHeads> heads,
                 std::span<const std::size_t> positions)
    : rank_(rank), sequence_(sequence), config_(config), dtype_(dtype), heads_(std::move(heads)) {
  std::size_t all = 0;
  for (const std::size_t of_text : positions) {
    first_.push_back(all);
    all += cached(of_text);
  }
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    const CachedHeads& of = heads_[layer];
    if (!config.layer(layer).projects_keys()) {
      layers_.emplace_back();
      continue;
    }
    const auto room = [&](std::string_view what) {
      return rank_.tensor(Category::activations, dtype_, {1, of.count, all, of.head_dim}, what);
    };
    layers_.push_back({.k = room("K cache"), .v = room("V cache")});
  }
}

/// Returns how many of the positions below `length` this rank caches.
std::size_t KvCache::cached(std::size_t length) const { return length / ranks() + (me() < length % ranks() ? 1 : 0); }

/// Sends rows of `from` [S_p, n_kv·d], this rank's tokens by zigzag, to the ranks that cache their positions, and receives `to`
/// [1, cached, n_kv, d], ordered by position.
void KvCache::move_rows(const Tensor& to, const ConstTensor& from, const CachedHeads& heads, const TokenLayout& tokens) {
  const std::size_t width = from.size(1);
  std::vector<std::uint32_t> leaving;  // my tokens by destination, then position
  std::vector<std::size_t> send_counts(ranks(), 0);
  std::vector<std::uint32_t> where(to.size(1));  // row of `in` for each cached position
  std::vector<std::size_t> recv_counts(ranks(), 0);
  const std::vector<std::int64_t> mine = tokens.cut().positions(sequence_.rank());
  for (std::size_t q = 0; q < ranks(); ++q) {
    for (std::size_t t = 0; t < mine.size(); ++t) {
      if (static_cast<std::size_t>(mine[t]) % ranks() != q) continue;
      leaving.push_back(static_cast<std::uint32_t>(t));
      send_counts[q] += width;
    }
  }
  std::uint32_t arrived = 0;
  for (int r = 0; r < sequence_.size(); ++r) {
    for (const std::int64_t position : tokens.cut().positions(r)) {
      if (static_cast<std::size_t>(position) % ranks() != me()) continue;
      where[static_cast<std::size_t>(position) / ranks()] = arrived++;
      recv_counts[static_cast<std::size_t>(r)] += width;
    }
  }
  const OwnedTensor out = rank_.tensor(Category::communication, dtype_, {from.size(0), width}, "K/V for the cache");
  const OwnedTensor in = rank_.tensor(Category::communication, dtype_, {to.size(1), width}, "K/V for the cache");
  rank_.compute().gather_rows(out, from, leaving);
  rank_.wait(
      sequence_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), send_counts, buffer_of(in.view()), recv_counts, kCache));
  for (std::size_t head = 0; head < heads.count; ++head) {
    rank_.compute().gather_rows(to.select(2, head).select(0, 0), in->slice(1, head * heads.head_dim, heads.head_dim), where);
  }
}

void KvCache::fill(std::size_t layer, std::size_t text, const Tensor& k, const Tensor& v, const TokenLayout& tokens) {
  const auto matrix = [](const Tensor& heads) { return heads.merged(2).select(0, 0); };
  move_rows(rows(layers_[layer].k, text, 0, tokens.sequence()), matrix(k), heads_[layer], tokens);
  move_rows(rows(layers_[layer].v, text, 0, tokens.sequence()), matrix(v), heads_[layer], tokens);
}

/// Stores K and V of `heads` at a text's position `length`: `kv` [2·heads·d].
void KvCache::put(std::size_t layer, std::size_t text, std::size_t length, const HeadRange& heads, const ConstTensor& kv) {
  const std::size_t d = heads_[layer].head_dim;
  const std::size_t width = heads.count * d;
  std::size_t at = 0;
  for (const OwnedTensor* cache : {&layers_[layer].k, &layers_[layer].v}) {
    const Tensor position = (*cache)->select(2, first_[text] + length / ranks()).select(0, 0);
    const Tensor place = position.slice(0, heads.first, heads.count);
    rank_.compute().convert(place, kv.slice(0, at, width).reshaped({heads.count, d}));
    at += width;
  }
}

void KvCache::add(std::size_t layer, const ConstTensor& kv, std::span<const std::size_t> lengths) {
  const auto& [cached_heads, d, shares] = heads_[layer];
  if (ranks() == 1) {
    for (std::size_t text = 0; text < lengths.size(); ++text) put(layer, text, lengths[text], shares[0], kv.select(0, text));
    return;
  }
  std::vector<std::uint32_t> leaving;  // texts by the rank that caches their new position
  std::vector<std::size_t> kept;       // texts whose new position this rank caches
  std::vector<std::size_t> send_counts(ranks(), 0);
  for (std::size_t keeper = 0; keeper < ranks(); ++keeper) {
    for (std::size_t text = 0; text < lengths.size(); ++text) {
      if (lengths[text] % ranks() != keeper) continue;
      leaving.push_back(static_cast<std::uint32_t>(text));
      send_counts[keeper] += kv.size(1);
      if (keeper == me()) kept.push_back(text);
    }
  }
  std::vector<std::size_t> recv_counts;
  for (const HeadRange& heads : shares) recv_counts.push_back(kept.size() * 2 * heads.count * d);
  const OwnedTensor out = rank_.tensor(Category::communication, dtype_, {leaving.size(), kv.size(1)}, "new K and V");
  const OwnedTensor in = rank_.tensor(Category::communication, dtype_, {kept.size() * 2 * cached_heads * d}, "new K and V");
  if (!kv.empty()) rank_.compute().gather_rows(out, kv, leaving);
  rank_.wait(
      sequence_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), send_counts, buffer_of(in.view()), recv_counts, kCache));
  std::size_t at = 0;
  for (const HeadRange& heads : shares) {
    if (heads.count == 0) continue;
    const std::size_t width = 2 * heads.count * d;
    for (const std::size_t text : kept) {
      put(layer, text, lengths[text], heads, in->slice(0, at, width));
      at += width;
    }
  }
}

}  // namespace tsprun::detail
