// What a tokenizer's file may look for in texts: a literal, or a regular expression for Oniguruma, the engine of Hugging Face's
// tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tsprun::detail::text {

/// A place in a text, in bytes.
struct Place {
  std::size_t begin;
  std::size_t end;
};

/// A pattern. Threads may share it.
class Pattern {
 public:
  /// Makes a pattern that matches a text as it is.
  static Pattern literal(std::string text);
  /// Compiles an expression. Throws std::invalid_argument with the engine's words if it isn't valid.
  static Pattern expression(const std::string& source);

  /// Gives all that this thread looks for from now on the time that a text of so many bytes has. Throws nothing.
  static void begin_text(std::size_t bytes);

  /// Calls visit(place, matched) for each match and for what lies before, between and behind them, in the text's order; a text
  /// without characters has one place, which doesn't match. Throws Error(refused) if the engine gives up or
  /// the text's time is over.
  template <class Visit>
  void each_place(std::string_view text, const Visit& visit) const {
    if (text.empty()) return visit(Place{0, 0}, false);
    std::size_t done = 0;
    Search search;
    while (find(text, search)) {
      if (search.match.begin != done) visit(Place{done, search.match.begin}, false);
      visit(search.match, true);
      done = search.match.end;
    }
    if (done != text.size()) visit(Place{done, text.size()}, false);
  }

 private:
  struct Compiled;
  struct Search {
    Place match{0, 0};
    std::size_t from = 0;
    bool any = false;  // there was a match before
  };
  explicit Pattern(std::string literal, std::shared_ptr<const Compiled> compiled)
      : literal_(std::move(literal)), compiled_(std::move(compiled)) {}
  /// Finds the next match; an empty one where the last ended isn't one. False: there is none.
  bool find(std::string_view text, Search& search) const;
  bool find_from(std::string_view text, std::size_t from, Place& match) const;
  [[noreturn]] void give_up(std::string_view text, std::size_t at, std::string_view why) const;

  std::string literal_;
  std::shared_ptr<const Compiled> compiled_;  // null: the literal is meant
};

}  // namespace tsprun::detail::text
