// What the grammar of --fault (spec.h) allows, as tables, and the nearest text within it to one that isn't.
#pragma once

#include "transport/fault/spec.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::fault {

using Keys = std::vector<std::string_view>;
/// Key and value of each part behind the colon, as typed; a part without '=' has a value without data().
using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

/// What a kind must and may say.
struct Form {
  Kind kind;
  std::string_view name;
  std::string_view example;
  Keys needed;
  Keys one_of;    // exactly one of these, if there are any
  Keys optional;  // `seed` is always

  /// All of its keys, `seed` last.
  Keys keys() const;
};

const std::vector<Form>& forms();
/// That of this name, else the one whose name is nearest.
const Form& nearest_form(std::string_view kind);

enum class ValueType : std::uint8_t { whole, real, word };

/// What may stand behind a key.
struct KeyRule {
  std::string_view key;
  ValueType type;
  std::uint64_t least = 0;  // of whole numbers
  std::uint64_t most = 0;
  double least_real = 0;  // of the others
  double most_real = 0;
};
const KeyRule& rule_of(std::string_view key);

/// The texts of a fault: before its first colon, and the pairs behind it.
std::string_view kind_of(std::string_view text);
Pairs split_pairs(std::string_view text);

/// A text that works and keeps of `text` what can be kept: the nearest kind and keys, numbers moved into their bounds, what is
/// missing from the kind's example. `ranks`: of the job, 0 if unknown, not 1 for a fault of messages.
std::string repaired(std::string_view text, int ranks);

/// The first of the words that come nearest to `word` by letters to change, add or take away; one over 16 letters isn't near.
/// Empty: each needs `limit` letters or more, or `word` is over 16 letters long and so no slip of the pen.
std::string_view nearest_word(std::span<const std::string_view> words, std::string_view word, std::size_t limit = SIZE_MAX);

}  // namespace tsprun::fault
