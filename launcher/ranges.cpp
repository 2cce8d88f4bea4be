// Prints runs of numbers, cut to a length.
#include "launcher/ranges.h"

#include <fmt/format.h>

namespace tsprun::detail::launcher {

std::string ranges_text(std::span<const int> numbers, std::size_t most) {
  std::string text;
  std::string short_text;
  const std::string end = fmt::format(",.. ({})", numbers.size());
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", numbers[first]) : fmt::format("{}-{}", numbers[first], numbers[last]);
    if (text.size() + end.size() <= most || short_text.empty()) short_text = text;
    first = last + 1;
  }
  return text.size() <= most ? text : short_text + end;
}

}  // namespace tsprun::detail::launcher
