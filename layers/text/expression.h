// What a tokenizer's file may look for in texts: a literal, or a regular expression for Oniguruma, the engine of Hugging Face's
// tokenizers.
#pragma once

#include "layers/text/function_ref.h"

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

/// How a text is searched: by so many threads, of which each takes the next block of so many bytes.
struct SearchPlan {
  std::size_t threads;
  std::size_t block_bytes;
  /// Returns that of a text of so many bytes: threads for all cores that this process may use, if it is long.
  static SearchPlan of(std::size_t bytes);
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
  /// without characters has one place, which doesn't match. The plan changes nothing but the time. Throws Error(refused) if the
  /// engine gives up or the text's time is over.
  template <class Visit>
  void each_place(std::string_view text, const Visit& visit) const {
    each_place(text, visit, SearchPlan::of(text.size()));
  }
  template <class Visit>
  void each_place(std::string_view text, const Visit& visit, const SearchPlan& plan) const {
    if (text.empty()) return visit(Place{0, 0}, false);
    std::size_t done = 0;
    each_match(text, plan, [&](Place match) {
      if (match.begin != done) visit(Place{done, match.begin}, false);
      visit(match, true);
      done = match.end;
    });
    if (done != text.size()) visit(Place{done, text.size()}, false);
  }

 private:
  friend class SearchBlocks;
  struct Compiled;
  /// Where a search has got to.
  struct Search {
    Place match{0, 0};
    std::size_t from = 0;  // after a match its end
    bool any = false;      // there was a match before
  };
  explicit Pattern(std::string literal, std::shared_ptr<const Compiled> compiled)
      : literal_(std::move(literal)), compiled_(std::move(compiled)) {}
  void each_match(std::string_view text, const SearchPlan& plan, FunctionRef<void(Place)> take) const;
  void each_match_of_blocks(std::string_view text, const SearchPlan& plan, FunctionRef<void(Place)> take) const;
  /// Finds the next match that begins before `until`; an empty one where the last ended isn't one. False: there is none, and the
  /// search has got to `until`.
  bool find(std::string_view text, Search& search, std::size_t until) const;
  bool find_from(std::string_view text, std::size_t from, std::size_t until, Place& match) const;
  [[noreturn]] void give_up(std::string_view text, std::size_t at, std::string_view why) const;

  std::string literal_;
  std::shared_ptr<const Compiled> compiled_;  // null: the literal is meant
};

}  // namespace tsprun::detail::text
