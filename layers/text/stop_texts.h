// Ends a text before the first of several texts in it, such as the next "User:" of a dialogue.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

/// Looks for stop texts in a text that comes in pieces. The first is the one whose last byte comes first; of several that end
/// there, the longest. So what is found doesn't depend on the pieces.
class StopTexts {
 public:
  /// Looks for these, none of which is empty. Without any, pieces pass as they are.
  explicit StopTexts(const std::vector<std::string>& texts);

  /// Takes a piece, and returns what is certain to stand before a stop text or to be none: all but what may yet become one. Once
  /// one is found, nothing.
  std::string add(std::string_view piece);
  /// Returns what was kept back, at the end of a text in which no stop text was found.
  std::string rest();
  bool found() const { return found_; }

 private:
  /// A text, looked for as Knuth, Morris and Pratt do.
  struct Stop {
    std::string text;
    std::vector<std::size_t> shorter;  ///< of its first i + 1 bytes: how many begin it and end them, but not all
    std::size_t begun = 0;             ///< how many of its bytes what came so far ends with

    void take(char byte);
  };
  std::vector<Stop> stops_;
  std::string kept_;
  bool found_ = false;
};

}  // namespace tsprun::detail::text
