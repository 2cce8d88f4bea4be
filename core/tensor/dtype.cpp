// Names of element types, operations and reductions, and conversions of bf16 and f16 from and to f32.
#include "transport/names.h"
#include "tsprun/types.h"

#include <array>
#include <bit>

namespace tsprun {

namespace {
constexpr std::string_view kDTypeNames[] = {
#define TSPRUN_X(dtype, bytes, text) text,
    TSPRUN_DTYPES(TSPRUN_X)
#undef TSPRUN_X
};
constexpr std::array<std::string_view, kOps> kOpNames = {"send",       "recv",           "send_recv",  "broadcast",
                                                         "all_gather", "reduce_scatter", "all_reduce", "reduce",
                                                         "all_to_all", "gather",         "scatter",    "barrier"};
constexpr std::array<std::string_view, kReductionCount> kReductionNames = {
#define TSPRUN_X(reduction, text) text,
    TSPRUN_REDUCTIONS(TSPRUN_X)
#undef TSPRUN_X
};
}  // namespace

std::string_view name(DType dtype) { return detail::name_in(kDTypeNames, dtype); }
std::optional<DType> dtype_from_name(std::string_view text) { return detail::value_in<DType>(kDTypeNames, text); }
std::string_view name(Op op) { return detail::name_in(kOpNames, op); }
std::optional<Op> op_from_name(std::string_view text) { return detail::value_in<Op>(kOpNames, text); }
std::string_view name(Reduction reduction) { return detail::name_in(kReductionNames, reduction); }
std::optional<Reduction> reduction_from_name(std::string_view text) { return detail::value_in<Reduction>(kReductionNames, text); }

bf16::bf16(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (wide & 0x7fffffffU) > 0x7f800000U;
  // Adding just under half of the last kept bit's value, and one more if that bit is 1, rounds to nearest with ties to even.
  const std::uint32_t rounded = is_nan ? wide | 0x00400000U : wide + 0x7fffU + ((wide >> 16) & 1U);
  bits = static_cast<std::uint16_t>(rounded >> 16);
}

bf16::operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

f16::f16(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = wide >> 16 & 0x8000U;
  const std::uint32_t size = wide & 0x7fffffffU;
  std::uint32_t narrow = 0;
  if (size > 0x7f800000U) {
    narrow = 0x7e00U;
  } else if (size >= 0x477ff000U) {  // from 65520 on, numbers are nearer to 2^16 than to the largest finite one
    narrow = 0x7c00U;
  } else if (size < 0x38800000U) {  // below 2^-14: a multiple of 2^-24, which the addition rounds to
    narrow = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  } else {
    narrow = (size - 0x38000000U + 0xfffU + (size >> 13 & 1U)) >> 13;  // the exponent's bias is 15 instead of 127
  }
  bits = static_cast<std::uint16_t>(sign | narrow);
}

f16::operator float() const {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t size = bits & 0x7fffU;
  if (size >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | size << 13);
  const float scaled = std::bit_cast<float>(size << 13) * 0x1p112F;  // exact, of subnormal numbers too
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

}  // namespace tsprun
