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

}  // namespace

Value arithmetic(const std::string& sign, const Value& one, const Value& two) {
  for (const Value* each : {&one, &two}) {
    if (each->is_undefined()) throw Trouble{fmt::format("'{}' is undefined", each->as<Undefined>()->name)};
  }
  if (sign == "*" && one.as<std::string>() != nullptr && !two.is_undefined())
    return repeated(*one.as<std::string>(), two.whole("*"));
  if (!one.is_number() || !two.is_number()) throw Trouble{fmt::format("{} {} {} isn't supported", one.type(), sign, two.type())};
  const bool divides = sign == "/" || sign == "//" || sign == "%";
  if (divides && two.number() == 0) throw Trouble{"a division by 0"};
  if (sign == "/") return one.number() / two.number();
  if (one.as<double>() != nullptr || two.as<double>() != nullptr) {
    const double a = one.number();
    const double b = two.number();
    if (sign == "//") return std::floor(a / b);
    if (sign == "%") return a - std::floor(a / b) * b;
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
