// Parses and prints sizes, numbers and words.
#include "launcher/values.h"

#include "launcher/refuse.h"

#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

namespace tsprun::detail::launcher {

namespace {

/// Returns by how many bits a size's suffix shifts; "K", "KB" and "KiB" mean the same. -1: it is no suffix.
int shift_of(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 0;
  constexpr std::string_view kLetters = "KMGT";
  const std::size_t letter = kLetters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix.front()))));
  suffix.remove_prefix(1);
  const bool whole = suffix.empty() || suffix == "B" || suffix == "b" || suffix == "iB" || suffix == "ib";
  return letter == std::string_view::npos || !whole ? -1 : static_cast<int>(letter + 1) * 10;
}

}  // namespace

std::uint64_t parse_size(const std::string& option, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const int shift = shift_of(suffix);
  if (error == std::errc::invalid_argument || shift < 0) {
    refuse(fmt::format("{} {}: not a size; write bytes or use K, M, G (powers of 1024, and so are KB, MB, GB), such as 64K",
                       option, text));
  }
  if (error == std::errc::result_out_of_range || value > (UINT64_MAX >> shift)) {
    refuse(fmt::format("{} {}: too large for any memory; try 16G", option, text));
  }
  return value << shift;
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::string_view kSuffixes[] = {"", "K", "M", "G", "T"};
  std::size_t suffix = 0;
  while (bytes != 0 && bytes % 1024 == 0 && suffix + 1 < std::size(kSuffixes)) {
    bytes /= 1024;
    ++suffix;
  }
  return fmt::format("{}{}", bytes, kSuffixes[suffix]);
}

std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t lowest, std::int64_t highest) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::invalid_argument || !whole) {
    refuse(fmt::format("{} {}: not a whole number; {} to {} work", option, text, lowest, highest));
  }
  const bool too_large = error == std::errc::result_out_of_range && text.front() != '-';
  const bool too_small = error == std::errc::result_out_of_range && text.front() == '-';
  if (too_large || value > highest) refuse(fmt::format("{} {}: {} to {} work; try {}", option, text, lowest, highest, highest));
  if (too_small || value < lowest) refuse(fmt::format("{} {}: {} to {} work; try {}", option, text, lowest, highest, lowest));
  return value;
}

double parse_number(const std::string& option, const std::string& text, const NumberRange& range) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string works = fmt::format("{} {} {} {} work", range.open ? "above" : "from", range.lowest,
                                        range.below ? "to below" : "to", range.highest);
  if (error != std::errc{} || end != text.data() + text.size() || std::isnan(value)) {
    refuse(fmt::format("{} {}: not a number; numbers {}; try {}", option, text, works, range.usual));
  }
  const bool too_low = value < range.lowest || (range.open && value == range.lowest);
  const bool too_high = value > range.highest || (range.below && value == range.highest);
  if (!too_low && !too_high) return value;
  const bool end_works = too_low ? !range.open : !range.below;
  refuse(fmt::format("{} {}: numbers {}; try {}", option, text, works,
                     end_works ? (too_low ? range.lowest : range.highest) : range.usual));
}

void refuse_choice(const std::string& option, const std::string& text, const std::string& why,
                   const std::vector<std::string>& words) {
  const std::span all_but_last(words.data(), words.size() - 1);
  refuse(fmt::format("{} {}: {}{} and {} work", option, text, why, fmt::join(all_but_last, ", "), words.back()));
}

Choice<std::string> one_of(const std::vector<std::string>& words, std::string why) {
  Choice<std::string> choice{.choices = {}, .why = std::move(why)};
  for (const std::string& word : words) choice.choices.emplace_back(word, word);
  return choice;
}

Choice<DType> dtypes() { return {{{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}}}; }

Choice<bool> audit_modes() { return {{{"report", false}, {"strict", true}}}; }

Choice<Recompute> recompute_modes() {
  return {{{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}}};
}

}  // namespace tsprun::detail::launcher
