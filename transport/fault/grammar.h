// The grammar of --fault (spec.h) as tables.
#pragma once

#include "transport/fault/spec.h"

#include <cstdint>
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
/// Returns the form of this name; null: there is none.
const Form* find_form(std::string_view kind);

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

/// Split a fault's text into the kind before its first colon and the pairs after it.
std::string_view kind_of(std::string_view text);
Pairs split_pairs(std::string_view text);

}  // namespace tsprun::detail::fault
