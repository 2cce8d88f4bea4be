// One loop for all reductions of numbers with a fraction: a block of outputs is held in four vectors while the terms are added
// one after another. So each input is read once and each output written once, whatever the number of terms. Integers take a plain
// loop over blocks that stay in the cache, which the compiler turns into vectors. The file is compiled for every vector level
// that the compiler knows; the process's level (level.h) selects one at run time.
#include "core/kernels/reduce.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TSP_KERNELS_REDUCE_SHAPE
#define TSP_KERNELS_REDUCE_SHAPE
namespace tsprun::detail::kernels {
/// Dtypes of the first term, the other terms and the result, where they differ from the accumulator's.
enum class Shape : std::uint8_t {
  whole,    ///< all are stored
  widen,    ///< the result is an accumulator
  hop,      ///< the first term and the result are accumulators
  last_hop  ///< the first term is an accumulator
};
/// Types whose elements are stored as 16 bits.
struct Bf16Bits {
  std::uint16_t bits;
};
struct F16Bits {
  std::uint16_t bits;
};
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

/// Conversion of elements that are stored as 16 bits and accumulated in f32. Kind has widen() and round().
template <class Bits, class Kind>
struct NarrowWire {
  template <class D>
  static hn::Vec<D> load(D d, const Bits* from) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::uint32_t, D> wide;
    return Kind::widen(d, hn::PromoteTo(wide, hn::LoadU(narrow, &from->bits)));
  }
  template <class D>
  static auto demote(D d, hn::Vec<D> value) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::int32_t, D> signed_wide;
    return hn::DemoteTo(narrow, hn::BitCast(signed_wide, Kind::round(d, value)));
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, Bits* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    hn::StoreU(demote(d, value), narrow, &to->bits);
  }
  template <class D>
  static void stream(D d, hn::Vec<D> value, Bits* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    // Highway's Stream() writes 16 bytes at least, and half a vector of 16 bytes has 8.
    if constexpr (HWY_MAX_BYTES >= 32) {
      hn::Stream(demote(d, value), narrow, &to->bits);
    } else {
      hn::StoreU(demote(d, value), narrow, &to->bits);
    }
  }
};

struct Bf16Kind {
  template <class D, class V>
  static hn::Vec<D> widen(D d, V bits) {
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
  /// Rounds to nearest, ties to even. NaNs are canonical here and stay so.
  template <class D>
  static auto round(D, hn::Vec<D> value) {
    const hn::Rebind<std::uint32_t, D> wide;
    const auto bits = hn::BitCast(wide, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
    return hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7fff))));
  }
};

/// The arithmetic of f16's conversions in dtype.cpp, without branches.
struct F16Kind {
  template <class D, class V>
  static hn::Vec<D> widen(D d, V bits) {
    const hn::Rebind<std::uint32_t, D> wide;
    const auto size = hn::And(bits, hn::Set(wide, 0x7fff));
    const auto number = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(size)), hn::Set(d, 0x1p112F));
    const auto huge = hn::Or(hn::ShiftLeft<13>(size), hn::Set(wide, 0x7f800000));
    const auto finite = hn::Lt(hn::BitCast(d, hn::ShiftLeft<13>(size)), hn::BitCast(d, hn::Set(wide, 0x0f800000)));
    const auto magnitude = hn::IfThenElse(finite, number, hn::BitCast(d, huge));
    return hn::Or(magnitude, hn::BitCast(d, hn::ShiftLeft<16>(hn::AndNot(hn::Set(wide, 0x7fff), bits))));
  }
  /// Rounds to nearest, ties to even. NaNs are canonical here and stay so.
  template <class D>
  static auto round(D d, hn::Vec<D> value) {
    const hn::Rebind<std::uint32_t, D> wide;
    const auto bits = hn::BitCast(wide, value);
    const auto magnitude = hn::Abs(value);
    const auto size = hn::BitCast(wide, magnitude);
    const auto half = hn::Set(d, 0.5F);
    const auto small = hn::Sub(hn::BitCast(wide, hn::Add(magnitude, half)), hn::BitCast(wide, half));
    const auto odd = hn::And(hn::ShiftRight<13>(size), hn::Set(wide, 1));
    const auto usual = hn::ShiftRight<13>(hn::Add(hn::Sub(size, hn::Set(wide, 0x38000000 - 0xfff)), odd));
    auto narrow = hn::IfThenElse(hn::RebindMask(wide, hn::Lt(magnitude, hn::Set(d, 0x1p-14F))), small, usual);
    narrow = hn::IfThenElse(hn::RebindMask(wide, hn::Ge(magnitude, hn::Set(d, 65520.0F))), hn::Set(wide, 0x7c00), narrow);
    narrow = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(value)), hn::Set(wide, 0x7e00), narrow);
    return hn::Or(narrow, hn::AndNot(hn::Set(wide, 0x7fff), hn::ShiftRight<16>(bits)));
  }
};

template <>
struct Wire<Bf16Bits> : NarrowWire<Bf16Bits, Bf16Kind> {};
template <>
struct Wire<F16Bits> : NarrowWire<F16Bits, F16Kind> {};

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
  if constexpr (kReduction == Reduction::sum || kReduction == Reduction::average) {
    return hn::Add(accumulator, term);
  } else if constexpr (kReduction == Reduction::product) {
    return hn::Mul(accumulator, term);
  } else {
    const auto better = kReduction == Reduction::max ? hn::Gt(term, accumulator) : hn::Lt(term, accumulator);
    const auto chosen = hn::IfThenElse(better, term, accumulator);
    return hn::IfThenElse(hn::IsNaN(term), term, chosen);  // a NaN accumulator compares false and stays
  }
}

/// Returns the result of an accumulator of `terms` terms.
template <Reduction kReduction, class D>
hn::Vec<D> finish(D d, hn::Vec<D> accumulator, [[maybe_unused]] std::size_t terms) {
  if constexpr (kReduction == Reduction::average) {
    accumulator = hn::Div(accumulator, hn::Set(d, static_cast<hn::TFromD<D>>(terms)));
  }
  return hn::IfThenElse(hn::IsNaN(accumulator), canonical_nan(d), accumulator);
}

/// Computes fewer outputs than a vector has lanes, on padded copies.
template <Reduction kReduction, class D, class First, class Rest, class Out>
void reduce_tail(D d, const std::byte* const* terms, std::size_t term_count, std::size_t all_terms, Out* out, std::size_t at,
                 std::size_t count) {
  alignas(64) First first[HWY_LANES(hn::TFromD<D>)] = {};
  alignas(64) Rest rest[HWY_LANES(hn::TFromD<D>)] = {};
  alignas(64) Out result[HWY_LANES(hn::TFromD<D>)] = {};
  std::memcpy(first, reinterpret_cast<const First*>(terms[0]) + at, count * sizeof(First));
  auto accumulator = Wire<First>::load(d, first);
  for (std::size_t t = 1; t < term_count; ++t) {
    std::memcpy(rest, reinterpret_cast<const Rest*>(terms[t]) + at, count * sizeof(Rest));
    accumulator = combine<kReduction>(d, accumulator, Wire<Rest>::load(d, rest));
  }
  Wire<Out>::store(d, finish<kReduction>(d, accumulator, all_terms), result);
  std::memcpy(out + at, result, count * sizeof(Out));
}

/// Computes outputs from `at` on in full blocks of four vectors. Returns the first output that isn't computed.
template <Reduction kReduction, bool kStreaming, class D, class First, class Rest, class Out>
std::size_t reduce_blocks(D d, const std::byte* const* terms, std::size_t term_count, std::size_t all_terms, Out* out,
                          std::size_t at, std::size_t count) {
  const std::size_t lanes = hn::Lanes(d);
  const auto write = [d, all_terms](hn::Vec<D> value, Out* to) HWY_ATTR {
    if constexpr (kStreaming) {
      Wire<Out>::stream(d, finish<kReduction>(d, value, all_terms), to);
    } else {
      Wire<Out>::store(d, finish<kReduction>(d, value, all_terms), to);
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
void reduce_arrays(const std::byte* const* terms, std::size_t term_count, std::size_t all_terms, std::byte* result,
                   std::size_t count, bool streaming) {
  const hn::ScalableTag<Accumulator> d;
  const std::size_t lanes = hn::Lanes(d);
  Out* out = reinterpret_cast<Out*>(result);
  std::size_t at = 0;
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(result) % 64;
  if (streaming && misplaced % sizeof(Out) == 0) {  // streaming stores need aligned addresses
    while (at < count && reinterpret_cast<std::uintptr_t>(out + at) % 64 != 0) {
      const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(out + at) % 64) / sizeof(Out);
      const std::size_t some = std::min({lanes, to_line, count - at});
      reduce_tail<kReduction, decltype(d), First, Rest, Out>(d, terms, term_count, all_terms, out, at, some);
      at += some;
    }
    at = reduce_blocks<kReduction, true, decltype(d), First, Rest, Out>(d, terms, term_count, all_terms, out, at, count);
    hwy::FlushStream();  // release stores, which tell peers of the data, don't order streaming stores
  } else {
    at = reduce_blocks<kReduction, false, decltype(d), First, Rest, Out>(d, terms, term_count, all_terms, out, at, count);
  }
  for (; at < count; at += std::min(lanes, count - at)) {
    reduce_tail<kReduction, decltype(d), First, Rest, Out>(d, terms, term_count, all_terms, out, at, std::min(lanes, count - at));
  }
}

template <Reduction kReduction, class Bits>
void reduce_narrow(Shape shape, const std::byte* const* terms, std::size_t term_count, std::size_t all_terms, std::byte* out,
                   std::size_t count, bool streaming) {
  switch (shape) {
    case Shape::whole:
      return reduce_arrays<kReduction, float, Bits, Bits, Bits>(terms, term_count, all_terms, out, count, streaming);
    case Shape::widen:
      return reduce_arrays<kReduction, float, Bits, Bits, float>(terms, term_count, all_terms, out, count, streaming);
    case Shape::hop:
      return reduce_arrays<kReduction, float, float, Bits, float>(terms, term_count, all_terms, out, count, streaming);
    case Shape::last_hop:
      return reduce_arrays<kReduction, float, float, Bits, Bits>(terms, term_count, all_terms, out, count, streaming);
  }
}

template <Reduction kReduction>
void reduce_floats(DType dtype, Shape shape, const std::byte* const* terms, std::size_t term_count, std::size_t all_terms,
                   std::byte* out, std::size_t count, bool streaming) {
  switch (dtype) {
    case DType::f64:
      return reduce_arrays<kReduction, double, double, double, double>(terms, term_count, all_terms, out, count, streaming);
    case DType::bf16: return reduce_narrow<kReduction, Bf16Bits>(shape, terms, term_count, all_terms, out, count, streaming);
    case DType::f16: return reduce_narrow<kReduction, F16Bits>(shape, terms, term_count, all_terms, out, count, streaming);
    default: return reduce_arrays<kReduction, float, float, float, float>(terms, term_count, all_terms, out, count, streaming);
  }
}

/// Combines integers, all terms for one block after another.
template <class T, class Combine>
void reduce_blocks_of(const std::byte* const* terms, std::size_t term_count, std::byte* out, std::size_t count, Combine combine) {
  constexpr std::size_t kBlock = 2048 / sizeof(T);
  T block[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t some = std::min(kBlock, count - at);
    std::memcpy(block, terms[0] + at * sizeof(T), some * sizeof(T));
    for (std::size_t t = 1; t < term_count; ++t) {
      const T* term = reinterpret_cast<const T*>(terms[t]) + at;
      for (std::size_t i = 0; i < some; ++i) block[i] = combine(block[i], term[i]);
    }
    std::memcpy(out + at * sizeof(T), block, some * sizeof(T));
  }
}

template <class T>
void reduce_integers(Reduction reduction, const std::byte* const* terms, std::size_t n, std::byte* out, std::size_t count) {
  using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;  // of arithmetic without overflow
  switch (reduction) {
    case Reduction::max: return reduce_blocks_of<T>(terms, n, out, count, [](T a, T b) { return a < b ? b : a; });
    case Reduction::min: return reduce_blocks_of<T>(terms, n, out, count, [](T a, T b) { return b < a ? b : a; });
    case Reduction::product:
      return reduce_blocks_of<T>(terms, n, out, count,
                                 [](T a, T b) { return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b)); });
    case Reduction::bit_and: return reduce_blocks_of<T>(terms, n, out, count, [](T a, T b) { return static_cast<T>(a & b); });
    case Reduction::bit_or: return reduce_blocks_of<T>(terms, n, out, count, [](T a, T b) { return static_cast<T>(a | b); });
    case Reduction::bit_xor: return reduce_blocks_of<T>(terms, n, out, count, [](T a, T b) { return static_cast<T>(a ^ b); });
    default:
      return reduce_blocks_of<T>(terms, n, out, count,
                                 [](T a, T b) { return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b)); });
  }
}

/// Returns the reduction of bits that does the same to elements that are 0 or 1.
Reduction of_booleans(Reduction reduction) {
  if (reduction == Reduction::bit_xor) return reduction;
  const bool all = reduction == Reduction::min || reduction == Reduction::product || reduction == Reduction::bit_and;
  return all ? Reduction::bit_and : Reduction::bit_or;
}

void reduce_any(Reduction reduction, DType dtype, Shape shape, const std::byte* const* terms, std::size_t term_count,
                std::size_t all_terms, std::byte* out, std::size_t count, bool streaming) {
  switch (dtype) {
    case DType::i8: return reduce_integers<std::int8_t>(reduction, terms, term_count, out, count);
    case DType::u8: return reduce_integers<std::uint8_t>(reduction, terms, term_count, out, count);
    case DType::i32: return reduce_integers<std::int32_t>(reduction, terms, term_count, out, count);
    case DType::i64: return reduce_integers<std::int64_t>(reduction, terms, term_count, out, count);
    case DType::boolean: return reduce_integers<std::uint8_t>(of_booleans(reduction), terms, term_count, out, count);
    default: break;
  }
  const auto floats = [&](auto kind) {
    reduce_floats<decltype(kind)::value>(dtype, shape, terms, term_count, all_terms, out, count, streaming);
  };
  switch (reduction) {
    case Reduction::max: return floats(std::integral_constant<Reduction, Reduction::max>());
    case Reduction::min: return floats(std::integral_constant<Reduction, Reduction::min>());
    case Reduction::product: return floats(std::integral_constant<Reduction, Reduction::product>());
    case Reduction::average: return floats(std::integral_constant<Reduction, Reduction::average>());
    default: return floats(std::integral_constant<Reduction, Reduction::sum>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(reduce_any);

namespace {

void run(Reduction reduction, DType dtype, Shape shape, std::span<const std::byte* const> terms, std::size_t all_terms,
         std::byte* out, std::size_t count, Stores stores) {
  if (count == 0) return;
  const bool streaming = stores == Stores::streaming;
  HWY_DYNAMIC_DISPATCH(reduce_any)
  (reduction, dtype, shape, terms.data(), terms.size(), all_terms, out, count, streaming);
}

}  // namespace

void reduce(Reduction reduction, DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
            Stores stores) {
  if (terms.size() == 1) {
    if (terms[0] != out && count != 0) std::memcpy(out, terms[0], count * size_of(dtype));
    return;
  }
  run(reduction, dtype, Shape::whole, terms, terms.size(), out, count, stores);
}

void reduce_term(Reduction reduction, DType dtype, const std::byte* partial, const std::byte* term, std::byte* out,
                 std::size_t count, std::size_t last_of, Stores stores) {
  const std::array<const std::byte*, 2> terms = {partial, term};
  if (last_of == 0 && reduction == Reduction::average) reduction = Reduction::sum;
  run(reduction, dtype, last_of == 0 ? Shape::hop : Shape::last_hop, terms, last_of, out, count, stores);
}

void widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count) {
  if (count == 0) return;
  if (accumulator_of(dtype) != dtype) {
    run(Reduction::sum, dtype, Shape::widen, std::array{term}, 1, out, count, Stores::cached);
  } else {
    std::memcpy(out, term, count * size_of(dtype));
  }
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
