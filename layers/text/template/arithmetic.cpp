// Python's arithmetic. Whole numbers have 64 bits; where Python's would be longer, it is refused.
#include "layers/text/template/functions.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace tsprun::detail::text::jinja {

namespace {

Value repeated(const std::string& text, std::int64_t times) {
  std::string result;
  if (times <= 0 || text.empty()) return result;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(text.size(), static_cast<std::size_t>(times), &bytes)) throw Trouble{"too long a text"};
  spend(bytes);
  result.reserve(bytes);
  for (std::int64_t i = 0; i < times; ++i) result += text;
  return result;
}

/// Returns the rest of a division, which has the divisor's sign.
double rest_of(double one, double two) {
  const double rest = std::fmod(one, two);
  if (rest == 0) return std::copysign(0.0, two);
  return (rest < 0) != (two < 0) ? rest + two : rest;
}

/// Returns a division's result without its fraction, rounded down, as CPython does: by way of the rest.
double quotient_of(double one, double two) {
  const double rest = std::fmod(one, two);
  double result = (one - rest) / two;
  if (rest != 0 && (rest < 0) != (two < 0)) result -= 1;
  if (result == 0) return std::copysign(0.0, one / two);
  const double down = std::floor(result);
  return result - down > 0.5 ? down + 1 : down;
}

}  // namespace

Value arithmetic(const std::string& sign, const Value& one, const Value& two) {
  for (const Value* each : {&one, &two}) {
    if (each->is_undefined()) throw Trouble{fmt::format("'{}' is undefined", each->as<Undefined>()->name)};
  }
  if (sign == "*" && one.as<std::string>() != nullptr && !two.is_undefined())
    return repeated(*one.as<std::string>(), two.whole("*"));
  if (!one.is_number() || !two.is_number()) throw Trouble{fmt::format("{} {} {} isn't supported", one.type(), sign, two.type())};
  const bool divides = sign == "/" || sign == "//" || sign == "%";
  if (divides && two.number() == 0) throw Trouble{fmt::format("a division by 0: {}", sign)};
  if (sign == "/") return one.number() / two.number();
  if (one.as<double>() != nullptr || two.as<double>() != nullptr) {
    const double a = one.number();
    const double b = two.number();
    if (sign == "//") return quotient_of(a, b);
    if (sign == "%") return rest_of(a, b);
    return sign == "-" ? a - b : a * b;
  }
  const std::int64_t a = one.whole(sign);
  const std::int64_t b = two.whole(sign);
  if (divides) {
    if (b == -1 && a == INT64_MIN) throw Trouble{"too large a number"};
    const bool down = a % b != 0 && (a < 0) != (b < 0);
    return sign == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
  }
  std::int64_t result = 0;
  if (sign == "-" ? __builtin_sub_overflow(a, b, &result) : __builtin_mul_overflow(a, b, &result))
    throw Trouble{"too large a number"};
  return result;
}

}  // namespace tsprun::detail::text::jinja
