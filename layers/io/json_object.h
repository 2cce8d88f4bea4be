// One object of a JSON file, whose fields are read by name, type and range. Every refusal names the file, the field with the
// objects around it ("world.layout", "files[1].name"), what was expected, and what was found.
#pragma once

#include "layers/io/json_text.h"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tsprun::detail {

/// Access to the fields of an object. Methods that read throw Error(refused) for a value of the wrong type or range, and for a
/// missing one, unless they are given what it usually is. A field that is null, or whose name is empty, is missing.
class JsonObject {
 public:
  /// Borrows `object`. `where` names the file; `path` the objects around this one, with a dot at its end. Throws Error(refused)
  /// if it isn't an object.
  JsonObject(const nlohmann::json& object, std::string where, std::string path = {});

  const std::string& where() const { return where_; }
  /// Returns the objects around this one, with a dot at its end: what stands before a field's name in messages.
  const std::string& path() const { return path_; }
  /// Returns a field's value; null if it is missing.
  const nlohmann::json* find(std::string_view field);
  /// Throws Error(refused) with the field, what was expected, and what was found.
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;
  /// Throws Error(refused) with entry i, from 0, of the array that a field holds: "table[2]". Precondition: it has that entry.
  [[noreturn]] void refuse_entry(std::string_view field, std::size_t i, std::string_view expected) const;

  /// Returns a text of at least `least` and at most 200 bytes, as printable() gives it.
  std::string text(std::string_view field, std::size_t least = 1);
  /// Returns a number from `low` to `high`.
  double number(std::string_view field, double low, double high, std::optional<double> usual = {});
  /// Returns a number for which `is` is true; `expected` says in words which those are.
  template <std::predicate<double> Is>
  double number_that(const Is& is, std::string_view field, std::string_view expected, std::optional<double> usual = {}) {
    const nlohmann::json* value = find(field);
    if (value == nullptr && usual) return *usual;
    if (value == nullptr || !value->is_number() || !is(value->get<double>())) refuse(field, expected);
    return value->get<double>();
  }
  /// Returns a whole number from `low`, which isn't negative, to `high`.
  template <std::integral T>
  T integer(std::string_view field, std::type_identity_t<T> low, T high, std::type_identity_t<std::optional<T>> usual = {}) {
    if (usual && find(field) == nullptr) return *usual;
    return static_cast<T>(whole(field, static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high)));
  }
  bool flag(std::string_view field, std::optional<bool> usual = {});
  /// Returns the object that a field holds.
  JsonObject inside(std::string_view field);
  /// Returns how many entries the array has that a field holds: from `least` to `most`.
  std::size_t entries(std::string_view field, std::size_t least, std::size_t most);
  /// Returns entry i, from 0, of an array of objects. Precondition: i < entries(field).
  JsonObject entry(std::string_view field, std::size_t i);

  /// Throws Error(refused) if the object has a field that was never asked for.
  void done() const;

 protected:
  const nlohmann::json& object() const { return object_; }
  bool was_asked(std::string_view field) const;

 private:
  std::uint64_t whole(std::string_view field, std::uint64_t low, std::uint64_t high);

  const nlohmann::json& object_;
  std::string where_;
  std::string path_;
  std::vector<std::string> asked_;
};

}  // namespace tsprun::detail
