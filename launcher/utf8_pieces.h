// Splits a text that arrives in pieces of bytes only between characters, since terminals can't print half a character.
#pragma once

#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Keeps the bytes of a character that isn't complete yet.
class Utf8Pieces {
 public:
  /// Takes bytes and returns all that are known to be complete characters. Bytes that aren't UTF-8 pass unchanged as soon as that
  /// is certain.
  std::string add(std::string_view bytes);
  /// Returns what is left at the end: the beginning of a character that never became complete.
  std::string rest();

 private:
  std::string pending_;
};

}  // namespace tsprun::detail::launcher
