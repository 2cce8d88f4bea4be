// Reads JSON value by value, without a tree: what a vocabulary of some hundred thousand entries needs to load fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail::text {

/// A place in a JSON text. Every method throws Error(refused) with the file and the byte where the text isn't what it should be.
class JsonCursor {
 public:
  /// Reads `text` from byte `at` on. `where` names the file. Both must live longer than the cursor.
  JsonCursor(std::string_view text, const std::string& where, std::size_t at = 0) : text_(text), where_(where), at_(at) {}

  std::size_t at() const { return at_; }
  /// Returns the next character that isn't white space; 0 at the end.
  char peek();
  /// Takes this character.
  void take(char expected, std::string_view what);
  /// Takes this character if it is the next one.
  bool take_if(char character);
  /// Takes a string. The result is valid until the next one is taken.
  std::string_view string(std::string_view what);
  /// Takes a whole number from 0 to `most`.
  std::uint32_t integer(std::uint32_t most, std::string_view what);
  /// Takes a finite number.
  double number(std::string_view what);
  /// Takes any value, with at most 32 levels.
  void skip();

  /// Calls entry() at each entry of an array that begins here.
  template <class Entry>
  void each_entry(std::string_view what, const Entry& entry) {
    take('[', what);
    if (take_if(']')) return;
    do entry();
    while (take_if(','));
    take(']', what);
  }
  /// Calls field(name) at each field's value of an object that begins here.
  template <class Field>
  void each_field(std::string_view what, const Field& field) {
    take('{', what);
    if (take_if('}')) return;
    do {
      const std::string_view name = string("a name");
      take_colon();
      field(name);
    } while (take_if(','));
    take('}', what);
  }

  /// Throws Error(refused): what was expected at this place.
  [[noreturn]] void refuse(std::string_view expected) const { refuse(expected, at_); }
  /// Throws Error(refused): what was expected at this byte.
  [[noreturn]] void refuse(std::string_view expected, std::size_t at) const;

 private:
  void take_colon();
  void skip_string();
  std::string_view unescaped(std::size_t begin, std::string_view what);
  char32_t hexadecimal(std::string_view what);

  std::string_view text_;
  const std::string& where_;
  std::size_t at_;
  std::string unescaped_;
};

}  // namespace tsprun::detail::text
