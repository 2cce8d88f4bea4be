// One loop for all reductions: a block of outputs is held in four vectors while the terms are added one after another. So each
// input is read once and each output written once, whatever the number of terms. The file is compiled for every vector level that
// the compiler knows; the process's level (level.h) selects one at run time.
#include "core/kernels/reduce.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TSP_KERNELS_REDUCE_SHAPE
#define TSP_KERNELS_REDUCE_SHAPE
namespace tsprun::detail::kernels {
/// Combinations of the dtypes of the first term, the other terms and the result.
enum class Shape : std::uint8_t { f32, f64, bf16, widen_bf16, hop_bf16, last_hop_bf16 };
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Conversion of stored elements to accumulators and back. D is the tag of the accumulators' vector.
template <class Stored>
struct Wire {
  template <class D>
  static hn::Vec<D> load(D d, const Stored* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, Stored* to) {
    hn::StoreU(value, d, to);
  }
  template <class D>
  static void stream(D d, hn::Vec<D> value, Stored* to) {
    hn::Stream(value, d, to);
  }
};

/// Conversion of bf16, stored as its bits.
template <>
struct Wire<std::uint16_t> {
  template <class D>
  static hn::Vec<D> load(D d, const std::uint16_t* from) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::uint32_t, D> wide;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, from))));
  }
  /// Rounds to nearest, ties to even. NaNs are canonical here and stay so.
  template <class D>
  static auto round(D, hn::Vec<D> value) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::int32_t, D> signed_wide;
    const hn::Rebind<std::uint32_t, D> wide;
    const auto bits = hn::BitCast(wide, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7fff))));
    return hn::DemoteTo(narrow, hn::BitCast(signed_wide, rounded));
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, std::uint16_t* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    hn::StoreU(round(d, value), narrow, to);
  }
  template <class D>
  static void stream(D d, hn::Vec<D> value, std::uint16_t* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    hn::Stream(round(d, value), narrow, to);
  }
};

template <class D>
hn::Vec<D> canonical_nan(D d) {
  const hn::RebindToUnsigned<D> bits;
  using Bits = hn::TFromD<decltype(bits)>;
  if constexpr (sizeof(Bits) == 4) {
    return hn::BitCast(d, hn::Set(bits, Bits{0x7fc00000U}));
  } else {
    return hn::BitCast(d, hn::Set(bits, Bits{0x7ff8000000000000U}));
  }
}

/// Returns accumulator ⊕ term.
template <Reduction kReduction, class D>
hn::Vec<D> combine([[maybe_unused]] D d, hn::Vec<D> accumulator, hn::Vec<D> term) {
  if constexpr (kReduction == Reduction::sum) {
    return hn::Add(accumulator, term);
  } else {
    const auto better = kReduction == Reduction::max ? hn::Gt(term, accumulator) : hn::Lt(term, accumulator);
    const auto chosen = hn::IfThenElse(better, term, accumulator);
    return hn::IfThenElse(hn::IsNaN(term), term, chosen);  // a NaN accumulator compares false and stays
  }
}

template <class D>
hn::Vec<D> finish(D d, hn::Vec<D> accumulator) {
  return hn::IfThenElse(hn::IsNaN(accumulator), canonical_nan(d), accumulator);
}

/// Computes fewer outputs than a vector has lanes, on padded copies.
template <Reduction kReduction, class D, class First, class Rest, class Out>
void reduce_tail(D d, const std::byte* const* terms, std::size_t term_count, Out* out, std::size_t at, std::size_t count) {
  alignas(64) First first[HWY_LANES(hn::TFromD<D>)] = {};
  alignas(64) Rest rest[HWY_LANES(hn::TFromD<D>)] = {};
  alignas(64) Out result[HWY_LANES(hn::TFromD<D>)] = {};
  std::memcpy(first, reinterpret_cast<const First*>(terms[0]) + at, count * sizeof(First));
  auto accumulator = Wire<First>::load(d, first);
  for (std::size_t t = 1; t < term_count; ++t) {
    std::memcpy(rest, reinterpret_cast<const Rest*>(terms[t]) + at, count * sizeof(Rest));
    accumulator = combine<kReduction>(d, accumulator, Wire<Rest>::load(d, rest));
  }
  Wire<Out>::store(d, finish(d, accumulator), result);
  std::memcpy(out + at, result, count * sizeof(Out));
}

/// Computes outputs from `at` on in full blocks of four vectors. Returns the first output that isn't computed.
template <Reduction kReduction, bool kStreaming, class D, class First, class Rest, class Out>
std::size_t reduce_blocks(D d, const std::byte* const* terms, std::size_t term_count, Out* out, std::size_t at,
                          std::size_t count) {
  const std::size_t lanes = hn::Lanes(d);
  const auto write = [d](hn::Vec<D> value, Out* to) HWY_ATTR {
    if constexpr (kStreaming) {
      Wire<Out>::stream(d, finish(d, value), to);
    } else {
      Wire<Out>::store(d, finish(d, value), to);
    }
  };
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    const First* first = reinterpret_cast<const First*>(terms[0]) + at;
    auto a = Wire<First>::load(d, first);
    auto b = Wire<First>::load(d, first + lanes);
    auto c = Wire<First>::load(d, first + 2 * lanes);
    auto e = Wire<First>::load(d, first + 3 * lanes);
    for (std::size_t t = 1; t < term_count; ++t) {
      const Rest* term = reinterpret_cast<const Rest*>(terms[t]) + at;
      a = combine<kReduction>(d, a, Wire<Rest>::load(d, term));
      b = combine<kReduction>(d, b, Wire<Rest>::load(d, term + lanes));
      c = combine<kReduction>(d, c, Wire<Rest>::load(d, term + 2 * lanes));
      e = combine<kReduction>(d, e, Wire<Rest>::load(d, term + 3 * lanes));
    }
    write(a, out + at);
    write(b, out + at + lanes);
    write(c, out + at + 2 * lanes);
    write(e, out + at + 3 * lanes);
  }
  return at;
}

template <Reduction kReduction, class Accumulator, class First, class Rest, class Out>
void reduce_arrays(const std::byte* const* terms, std::size_t term_count, std::byte* result, std::size_t count, bool streaming) {
  const hn::ScalableTag<Accumulator> d;
  const std::size_t lanes = hn::Lanes(d);
  Out* out = reinterpret_cast<Out*>(result);
  std::size_t at = 0;
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(result) % 64;
  if (streaming && misplaced % sizeof(Out) == 0) {  // streaming stores need aligned addresses
    while (at < count && reinterpret_cast<std::uintptr_t>(out + at) % 64 != 0) {
      const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(out + at) % 64) / sizeof(Out);
      const std::size_t some = std::min({lanes, to_line, count - at});
      reduce_tail<kReduction, decltype(d), First, Rest, Out>(d, terms, term_count, out, at, some);
      at += some;
    }
    at = reduce_blocks<kReduction, true, decltype(d), First, Rest, Out>(d, terms, term_count, out, at, count);
    hwy::FlushStream();  // release stores, which tell peers of the data, don't order streaming stores
  } else {
    at = reduce_blocks<kReduction, false, decltype(d), First, Rest, Out>(d, terms, term_count, out, at, count);
  }
  for (; at < count; at += std::min(lanes, count - at)) {
    reduce_tail<kReduction, decltype(d), First, Rest, Out>(d, terms, term_count, out, at, std::min(lanes, count - at));
  }
}

template <Reduction kReduction>
void reduce_shape(Shape shape, const std::byte* const* terms, std::size_t term_count, std::byte* out, std::size_t count,
                  bool streaming) {
  using Bf16 = std::uint16_t;
  switch (shape) {
    case Shape::f32: return reduce_arrays<kReduction, float, float, float, float>(terms, term_count, out, count, streaming);
    case Shape::f64: return reduce_arrays<kReduction, double, double, double, double>(terms, term_count, out, count, streaming);
    case Shape::bf16: return reduce_arrays<kReduction, float, Bf16, Bf16, Bf16>(terms, term_count, out, count, streaming);
    case Shape::widen_bf16: return reduce_arrays<kReduction, float, Bf16, Bf16, float>(terms, term_count, out, count, streaming);
    case Shape::hop_bf16: return reduce_arrays<kReduction, float, float, Bf16, float>(terms, term_count, out, count, streaming);
    case Shape::last_hop_bf16:
      return reduce_arrays<kReduction, float, float, Bf16, Bf16>(terms, term_count, out, count, streaming);
  }
}

void reduce_any(Reduction reduction, Shape shape, const std::byte* const* terms, std::size_t term_count, std::byte* out,
                std::size_t count, bool streaming) {
  switch (reduction) {
    case Reduction::sum: return reduce_shape<Reduction::sum>(shape, terms, term_count, out, count, streaming);
    case Reduction::max: return reduce_shape<Reduction::max>(shape, terms, term_count, out, count, streaming);
    case Reduction::min: return reduce_shape<Reduction::min>(shape, terms, term_count, out, count, streaming);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(reduce_any);

namespace {

Shape shape_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return Shape::f64;
    case DType::bf16: return Shape::bf16;
    default: return Shape::f32;
  }
}

void run(Reduction reduction, Shape shape, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
         Stores stores) {
  if (count == 0) return;
  HWY_DYNAMIC_DISPATCH(reduce_any)(reduction, shape, terms.data(), terms.size(), out, count, stores == Stores::streaming);
}

}  // namespace

void reduce(Reduction reduction, DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
            Stores stores) {
  if (terms.size() == 1) {
    if (terms[0] != out && count != 0) std::memcpy(out, terms[0], count * size_of(dtype));
    return;
  }
  run(reduction, shape_of(dtype), terms, out, count, stores);
}

void reduce_term(Reduction reduction, DType dtype, const std::byte* partial, const std::byte* term, std::byte* out,
                 std::size_t count, bool last, Stores stores) {
  const std::array<const std::byte*, 2> terms = {partial, term};
  const Shape bf16_shape = last ? Shape::last_hop_bf16 : Shape::hop_bf16;
  run(reduction, dtype == DType::bf16 ? bf16_shape : shape_of(dtype), terms, out, count, stores);
}

void widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count) {
  if (count == 0) return;
  if (dtype == DType::bf16) {
    run(Reduction::sum, Shape::widen_bf16, std::array{term}, out, count, Stores::cached);
  } else {
    std::memcpy(out, term, count * size_of(dtype));
  }
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
