// The grammar of --fault (spec.h) as tables, and the repair of a text that doesn't fit it: the nearest text that does.
#pragma once

#include "transport/fault/spec.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::fault {

/// Names of keys.
using Keys = std::vector<std::string_view>;
/// Key and value of each part after the colon, as typed. A part without '=' has a value whose data() is null.
using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

/// The keys that a kind of fault must and may have.
struct Form {
  Kind kind;
  std::string_view name;
  std::string_view example;
  Keys needed;
  Keys one_of;    // exactly one of these is needed, unless empty
  Keys optional;  // `seed` is always allowed

  /// Returns all keys that the kind may have, `seed` last.
  Keys keys() const;
};

/// Returns the forms of all kinds, in the order of Kind.
const std::vector<Form>& forms();
/// Returns the form of this name, else the one whose name is nearest.
const Form& nearest_form(std::string_view kind);

/// Type of a key's value.
enum class ValueType : std::uint8_t { whole, real, word };

/// The values that a key may have.
struct KeyRule {
  std::string_view key;
  ValueType type;
  std::uint64_t least = 0;  // bounds of whole numbers
  std::uint64_t most = 0;
  double least_real = 0;  // bounds of reals
  double most_real = 0;
};
/// Returns the rule of a key. Precondition: the key is one of a Form.
const KeyRule& rule_of(std::string_view key);

/// Take a fault's text apart: the kind before its first colon, and the pairs after it.
std::string_view kind_of(std::string_view text);
Pairs split_pairs(std::string_view text);

/// Returns a valid text that keeps as much of `text` as possible: the nearest kind and keys, numbers moved into their bounds,
/// and missing keys from the kind's example. `ranks`: number of ranks of the job, 0 if unknown; not 1 for a fault of messages.
std::string repaired(std::string_view text, int ranks);

/// Returns the word nearest to `word`, by the number of letters to change, add or remove; the first of several. Empty if each
/// needs `limit` letters or more. Words of more than 16 letters aren't compared, except for equality: nobody mistypes those by
/// a letter or two.
std::string_view nearest_word(std::span<const std::string_view> words, std::string_view word, std::size_t limit = SIZE_MAX);

}  // namespace tsprun::detail::fault
