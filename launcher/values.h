// Values of options: parses texts, and prints values as texts that parse to the same. A parser here is an object that is called
// with the option's name and its text, and throws Error(refused) naming both and what would work. Its print(), if it has one,
// gives the text of a value.
#pragma once

#include "layers/layout/setting.h"

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

/// Parses a size: "64K", "64KB", "64KiB", "16M", "2G" or "1048576". Returns bytes; suffixes are powers of 1024. Throws
/// Error(Cause::refused) naming `option`.
std::uint64_t parse_size(const std::string& option, const std::string& text);
/// Returns the shortest text that parse_size() reads back exactly: "64K", "1000".
std::string format_size(std::uint64_t bytes);
/// Parses a whole number from `lowest` to `highest`, both included. Throws Error(Cause::refused) naming `option`, the value and
/// the nearest number that works.
std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t lowest, std::int64_t highest);

/// Numbers that an option accepts.
struct NumberRange {
  double lowest;
  double highest;
  double usual = 0;    ///< what a refusal proposes if the nearest end isn't accepted itself
  bool open = false;   ///< `lowest` itself isn't accepted
  bool below = false;  ///< `highest` itself isn't accepted
};
/// Parses a number. Throws Error(refused) naming the option, the value and the nearest number that works.
double parse_number(const std::string& option, const std::string& text, const NumberRange& range);

/// Refuses a word that is none of an option's choices. `why`: what to say before the choices, or empty.
[[noreturn]] void refuse_choice(const std::string& option, const std::string& text, const std::string& why,
                                const std::vector<std::string>& words);

/// Parses whole numbers from `lowest` to `highest`.
struct Whole {
  std::int64_t lowest;
  std::int64_t highest;
  std::int64_t operator()(const std::string& option, const std::string& text) const {
    return parse_integer(option, text, lowest, highest);
  }
};

/// Parses numbers of a range.
struct Number {
  NumberRange range;
  double operator()(const std::string& option, const std::string& text) const { return parse_number(option, text, range); }
};

/// Parses one of several words.
template <class T>
struct Choice {
  std::vector<std::pair<std::string, T>> choices;
  std::string why = {};  ///< why another word is refused; empty: errors give no reason

  T operator()(const std::string& option, const std::string& text) const {
    for (const auto& [word, value] : choices)
      if (word == text) return value;
    refuse_choice(option, text, why, words());
  }
  std::string print(const T& value) const {
    for (const auto& [word, each] : choices)
      if (each == value) return word;
    return {};
  }
  std::vector<std::string> words() const {
    std::vector<std::string> all;
    for (const auto& [word, value] : choices) all.push_back(word);
    return all;
  }
};

/// Returns the choice among words that are used as they are.
Choice<std::string> one_of(const std::vector<std::string>& words, std::string why = {});
/// Returns the choice of --dtype.
Choice<DType> dtypes();
/// Returns the choice of --recompute.
Choice<Recompute> recompute_modes();
/// Parses what --audit does about a figure that isn't as forecast: shows it, or fails the job, too (true).
Choice<bool> audit_modes();
/// Returns "none", "selective" or "full".
inline std::string recompute_name(Recompute recompute) { return recompute_modes().print(recompute); }

/// Prints a value as its parser reads it; empty if that isn't known.
template <class Parser, class T>
std::string print_value(const Parser& parser, const T& value) {
  if constexpr (requires { parser.print(value); }) return parser.print(value);
  else if constexpr (std::integral<T> || std::floating_point<T>) return fmt::format("{}", value);
  else return {};
}

}  // namespace tsprun::detail::launcher
