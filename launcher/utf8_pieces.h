// A text that comes byte by byte, cut so that no character is broken: a terminal that gets half a character prints rubbish.
#pragma once

#include <string>
#include <string_view>

namespace tsprun::launcher {

class Utf8Pieces {
 public:
  /// Takes bytes; gives back all that is known to be whole. Bytes that are no UTF-8 pass as they are, as soon as that is certain.
  std::string add(std::string_view bytes);
  /// What is left at the end: the beginning of a character that never came.
  std::string rest();

 private:
  std::string pending_;
};

}  // namespace tsprun::launcher
