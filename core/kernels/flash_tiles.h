// Parts shared by flash attention's forward and backward: which tiles the mask leaves visible, how heads map, and checks of
// operands.
#pragma once

#include "core/kernels/check.h"
#include "core/kernels/document_set.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/flash.h"
#include "core/kernels/flash_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <type_traits>

namespace tsprun::detail::kernels::flash {

/// The mask of sequence `batch` expressed in indices of the views: which keys a query sees, and which queries see a key. Query a
/// sees keys [first_key_of(a), end_key_of(a)), none if that is empty; key b is seen by queries [first_query_of(b),
/// end_query_of(b)), which may lie beyond the view's last query. All four grow with their argument. Where tokens are dealt, these
/// ranges are those of the causal mask alone, of which sees() and dealt_documents() tell what documents and windows hide.
class Visibility {
 public:
  Visibility(const Mask& mask, std::size_t keys, std::size_t batch) : mask_(mask), keys_(keys) {
    if (!mask.documents.any()) return;
    if (!mask.documents.dealt()) {
      starts_ = mask.documents.of(batch);
      return;
    }
    names_ = mask.documents.of(batch);
    positions_ = mask.documents.positions_of(batch);
    mask_.window = 0;
    if (mask.window < names_.size()) dealt_window_ = static_cast<std::uint32_t>(mask.window);
  }

  /// Keys, or queries, [begin, end) of a view.
  struct Stretch {
    std::size_t begin;
    std::size_t end;
  };
  bool dealt() const { return !names_.empty(); }
  /// Returns whether a query sees a key.
  bool sees(std::size_t query, std::size_t key) const {
    if (key < first_key_of(query) || key >= end_key_of(query)) return false;
    return !dealt() || !documents_of(query, 1, key, 1).hides(0, 0);
  }
  /// Returns what of keys [key, end) `count` queries from `query` on see; it may begin before `key` and end behind `end`, and
  /// some of it may be hidden from some. {end, 0} if it is none.
  Stretch keys_of(std::size_t query, std::size_t count, std::size_t key, std::size_t end) const {
    const Stretch causal{first_key_of(query), end_key_of(query + count - 1)};
    if (!dealt()) return causal;
    end = std::min(end, causal.end);
    return narrowed({key, end}, mask_.key_start, names_.subspan(mask_.query_start + query, count));
  }
  /// Returns what of queries [query, end) see some of `count` keys from `key` on; {query, query} if none of them does.
  Stretch queries_of(std::size_t key, std::size_t count, std::size_t query, std::size_t end) const {
    const auto within = [&](std::size_t of_view) { return std::clamp(of_view, query, end); };
    const Stretch causal{within(first_query_of(key)), within(end_query_of(key + count - 1))};
    if (!dealt()) return causal;
    const Stretch found = narrowed(causal, mask_.query_start, names_.subspan(mask_.key_start + key, count));
    return found.begin < found.end ? found : Stretch{query, query};
  }
  /// Returns what hides keys [key, key + keys) from `queries` queries from `query` on, as tiles take it: nothing unless tokens
  /// are dealt, and some of these of other documents, or beyond the window.
  DealtDocuments dealt_documents(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) const {
    if (!dealt()) return {};
    const DealtDocuments all = documents_of(query, queries, key, keys);
    const std::uint32_t one = all.keys.front();
    const auto is_one = [&](std::span<const std::uint32_t> rows) {
      return std::ranges::count(rows, one) == static_cast<std::ptrdiff_t>(rows.size());
    };
    const bool near = all.window == 0 || all.query_positions[queries - 1] - all.key_positions[0] < all.window;
    return near && is_one(all.queries) && is_one(all.keys) ? DealtDocuments() : all;
  }

  std::size_t first_key_of(std::size_t query) const {
    std::size_t first = 0;  // position
    if (const std::size_t end = mask_.query_start + query + 1; mask_.window > 0 && end > mask_.window) first = end - mask_.window;
    if (!starts_.empty()) first = std::max<std::size_t>(first, starts_[mask_.query_start + query]);
    return first <= mask_.key_start ? 0 : std::min(keys_, first - mask_.key_start);
  }
  std::size_t end_key_of(std::size_t query) const {
    if (!mask_.causal) return keys_;
    const std::size_t position = mask_.query_start + query;
    return position < mask_.key_start ? 0 : std::min(keys_, position - mask_.key_start + 1);
  }
  /// Returns whether a query sees any key. `last`: of the query before, if it was asked for it just now, and what came out.
  bool sees_any(std::size_t query, std::optional<bool> last = {}) const {
    std::size_t key = end_key_of(query);
    if (!dealt()) return first_key_of(query) < key;
    // A query sees what the one before it in its document does, and of a view that lies before both nothing else.
    const std::size_t place = mask_.query_start + query;
    if (last && dealt_window_ == 0 && names_[place] == names_[place - 1] && (*last || end_key_of(query - 1) == key)) return *last;
    // The last key is often the query's own. Counting is vectorised, unlike a search that stops where it finds one.
    if (key == 0 || sees(query, key - 1)) return key > 0;
    const auto own = std::ranges::count(names_.subspan(mask_.key_start, key), names_[mask_.query_start + query]);
    if (own == 0 || dealt_window_ == 0) return own > 0;
    while (key > 0 && !sees(query, key - 1)) --key;
    return key > 0;
  }

  std::size_t first_query_of(std::size_t key) const {
    if (!mask_.causal) return 0;
    const std::size_t position = mask_.key_start + key;
    return position <= mask_.query_start ? 0 : position - mask_.query_start;
  }
  std::size_t end_query_of(std::size_t key) const {
    const std::size_t position = mask_.key_start + key;
    std::size_t end = std::numeric_limits<std::size_t>::max();
    if (mask_.window > 0) end = position + mask_.window;
    // The first position from the key's own on whose document begins behind the key.
    if (!starts_.empty()) {
      const auto behind = std::upper_bound(starts_.begin() + static_cast<std::ptrdiff_t>(position), starts_.end(), position);
      if (behind != starts_.end()) end = std::min(end, static_cast<std::size_t>(behind - starts_.begin()));
    }
    return end <= mask_.query_start ? 0 : end - mask_.query_start;
  }

  /// Returns the window as tiles take it (flash_rows.h): larger than any distance if there is none.
  std::ptrdiff_t window() const { return mask_.window == 0 ? kNoWindow : static_cast<std::ptrdiff_t>(mask_.window); }
  /// Returns the diagonal of the tile whose first key and query are these: query i of it doesn't see key j where i < j +
  /// diagonal.
  std::ptrdiff_t diagonal(std::size_t key, std::size_t query, std::size_t tile_keys) const {
    if (!mask_.causal) return -static_cast<std::ptrdiff_t>(tile_keys);
    return static_cast<std::ptrdiff_t>(mask_.key_start + key) - static_cast<std::ptrdiff_t>(mask_.query_start + query);
  }
  /// Returns where the documents of `count` queries from `query` on begin, as tiles take it: none if that hides no key from `key`
  /// on from them.
  DocumentStarts starts(std::size_t key, std::size_t query, std::size_t count) const {
    const std::size_t first = mask_.key_start + key;
    if (starts_.empty() || starts_[mask_.query_start + query + count - 1] <= first) return {};
    return {starts_.subspan(mask_.query_start + query, count), first};
  }

 private:
  DealtDocuments documents_of(std::size_t query, std::size_t queries, std::size_t key, std::size_t keys) const {
    const std::size_t q = mask_.query_start + query;
    const std::size_t k = mask_.key_start + key;
    return {names_.subspan(q, queries), names_.subspan(k, keys), positions_.data() + q, positions_.data() + k, dealt_window_};
  }
  /// Returns the part of a stretch of a view, which begins at place `start`, without what lies before and behind the rows that
  /// have one of `documents`; {end, 0} if none has.
  Stretch narrowed(Stretch rows, std::size_t start, std::span<const std::uint32_t> documents) const {
    const DocumentSet named(documents);
    if (rows.begin >= rows.end || !named.holds_any(names_.subspan(start + rows.begin, rows.end - rows.begin)))
      return {rows.end, 0};
    while (!named.holds(names_[start + rows.begin])) ++rows.begin;
    while (!named.holds(names_[start + rows.end - 1])) --rows.end;
    return rows;
  }

  Mask mask_;
  std::size_t keys_;
  std::span<const std::uint32_t> starts_;  // of the sequence's positions; empty: it is one document, or its tokens are dealt
  // Where tokens are dealt, by place: where the document of each begins, and its position there.
  std::span<const std::uint32_t> names_ = {};
  std::span<const std::uint32_t> positions_ = {};
  std::uint32_t dealt_window_ = 0;
};

/// Calls body(begin, end) for each stretch of the numbers 0 to count − 1 of which all are seen.
template <class Sees, class Body>
void for_seen(std::size_t count, const Sees& sees, const Body& body) {
  for (std::size_t end = 0; end < count;) {
    std::size_t begin = end;
    while (begin < count && !sees(begin)) ++begin;
    for (end = begin; end < count && sees(end);) ++end;
    if (begin < end) body(begin, end);
  }
}

/// Returns how many numbers `lse` holds of a query: 1 or 2.
inline std::size_t numbers_of(const ConstTensor& lse) { return lse.dims() == 4 ? 2 : 1; }

/// Log-sum-exp of a query's scores: maximum + log_sum / scale, in units of q·k; with a soft cap, of the capped product.
template <class T>
struct LogSumExp {
  T maximum;       ///< −∞: the query sees no key
  double log_sum;  ///< ln of the sum of exp(scale·(q·k − maximum))

  static LogSumExp of_nothing() { return {-std::numeric_limits<T>::infinity(), 0}; }
  /// Returns it for a query that sees a key. It is NaN if `sum` is 0 (nothing could be summed up) or if `maximum` or `sum` is
  /// NaN.
  static LogSumExp of(T maximum, T sum) {
    if (sum > T{0}) return {maximum, std::log(static_cast<double>(sum))};
    return {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  static LogSumExp load(const T* from, std::size_t numbers) { return {from[0], numbers == 2 ? static_cast<double>(from[1]) : 0}; }
  /// Stores it in two numbers, or rounded to one: NaN where that would change probabilities by more than a part in 256; in f32
  /// that takes scaled scores beyond 2¹⁵ of which no single one outweighs the rest.
  void store(T* to, std::size_t numbers, double scale) const {
    if (numbers == 2) {
      to[0] = maximum;
      to[1] = static_cast<T>(log_sum);
    } else {
      to[0] = maximum == -std::numeric_limits<T>::infinity() ? maximum : rounded(scale);
    }
  }

 private:
  T rounded(double scale) const {
    constexpr double kMostLost = 1.0 / 256;
    const T above = static_cast<T>(log_sum / scale);
    const T lse = maximum + above;
    const double lost = static_cast<double>(above - (lse - maximum)) * scale;
    return std::abs(lost) <= kMostLost ? lse : std::numeric_limits<T>::quiet_NaN();
  }
};

/// Returns one head of one sequence as a matrix [S, d].
inline ConstTensor head(const ConstTensor& view, std::size_t batch, std::size_t number) {
  return view.select(0, batch).select(1, number);
}
inline Tensor head(const Tensor& view, std::size_t batch, std::size_t number) { return view.select(0, batch).select(1, number); }

/// Throws std::invalid_argument unless the K/V view holds each head that the query view's heads read.
inline void check_heads(const char* kernel, const HeadMap& heads, const ConstTensor& q, const ConstTensor& k) {
  require(heads.group > 0, kernel, "query heads per K/V head must be at least 1", q);
  if (q.size(2) == 0) return;
  const bool covered = heads.first_query / heads.group >= heads.first_kv &&
                       (heads.first_query + q.size(2) - 1) / heads.group - heads.first_kv < k.size(2);
  require(covered, kernel, "the K/V view must hold every head that the query view's heads read", k);
}

/// Throws std::invalid_argument unless shapes, dtypes, scale, dropout probability and heads of a call fit together.
inline void check_operands(const char* kernel, const Attention& attention, const ConstTensor& q, const ConstTensor& k,
                           const ConstTensor& v) {
  require(q.dims() == 4 && dense_rows(q) && computes(q.dtype()), kernel, "q must be [B, Sq, n, d] of a float type", q);
  for (const ConstTensor* view : {&k, &v}) {
    require(view->dims() == 4 && dense_rows(*view) && view->dtype() == q.dtype(), kernel,
            "k and v must be [B, Sk, n_kv, d] of q's type", *view);
    require(view->size(0) == q.size(0) && view->size(3) == q.size(3), kernel, "k and v must have q's batch and head dim", *view);
  }
  require(same_shape(k, v), kernel, "v must have k's shape", v);
  if (!(attention.scale > 0)) throw std::invalid_argument(std::string(kernel) + ": the scale of scores must be positive");
  if (!(attention.cap >= 0 && std::isfinite(attention.cap)))
    throw std::invalid_argument(std::string(kernel) + ": the soft cap of scores must be positive, or 0 for none");
  if (attention.mask.window > 0 && !attention.mask.causal)
    throw std::invalid_argument(std::string(kernel) + ": a window needs a causal mask");
  if (const Mask& mask = attention.mask; mask.documents.any()) {
    if (!mask.causal) throw std::invalid_argument(std::string(kernel) + ": documents need a causal mask");
    if (std::max(mask.query_start + q.size(1), mask.key_start + k.size(1)) > mask.documents.length)
      throw std::invalid_argument(std::string(kernel) + ": documents must say where each position's begins");
  }
  const double dropped = attention.dropout.draw.probability;
  if (!(dropped >= 0 && dropped < 1)) throw std::invalid_argument(std::string(kernel) + ": dropout must be in [0, 1)");
  check_heads(kernel, attention.heads, q, k);
}

/// Returns whether `values`, of `dims` dims, begins with [B, n, Sq] and is in the type of sums.
inline bool has_rows_of(const ConstTensor& values, std::size_t dims, const ConstTensor& q) {
  return values.dims() == dims && values.size(0) == q.size(0) && values.size(1) == q.size(2) && values.size(2) == q.size(1) &&
         values.dtype() == summed_in(q.dtype());
}
/// Throws std::invalid_argument unless lse is [B, n, Sq] or [B, n, Sq, 2] in the type of sums.
inline void check_lse(const char* kernel, const ConstTensor& lse, const ConstTensor& q) {
  require(has_rows_of(lse, 3, q) || (has_rows_of(lse, 4, q) && lse.size(3) == 2 && dense_rows(lse)), kernel,
          "lse must be [B, n, Sq] or [B, n, Sq, 2] of the type of sums", lse);
}
/// Throws std::invalid_argument unless delta is [B, n, Sq] in the type of sums.
inline void check_delta(const char* kernel, const ConstTensor& delta, const ConstTensor& q) {
  require(has_rows_of(delta, 3, q), kernel, "delta must be [B, n, Sq] of the type of sums", delta);
}

}  // namespace tsprun::detail::kernels::flash
