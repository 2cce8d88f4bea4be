// What stands within a tag: its tokens one by one, and the expressions that they make.
#pragma once

#include "layers/text/template/lexer.h"
#include "layers/text/template/syntax.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::jinja {

/// Goes through a tag's tokens. All that takes tokens throws SyntaxTrouble for others than it expects.
class TagParser {
 public:
  /// Begins with a tag, the last token of which is of kind `end`.
  void begin(std::vector<Token> tokens);

  /// Takes an expression, or several with commas between them, which are a tuple. `choices`: "a if b else c" is one.
  ExpressionPtr tuple(bool choices = true);
  ExpressionPtr expression();
  /// Takes filters and tests. `begun`: the first filter stands without a '|'.
  ExpressionPtr filters(ExpressionPtr value, bool begun);
  /// Makes an expression of a kind that has no parts.
  ExpressionPtr make(Expression::Kind kind, std::string text = {}) const;

  const Token& peek(std::size_t ahead = 0) const;
  bool is(std::string_view text, std::size_t ahead = 0) const;
  bool take(std::string_view text);
  void need(std::string_view text);
  std::string name();
  /// Returns what stands here instead of what was expected, in words.
  std::string found() const;
  /// Makes sure that nothing is left.
  void done() const;
  /// Throws SyntaxTrouble with the line of the next token.
  [[noreturn]] void refuse(std::string what) const;

  /// Counts levels of nesting, which a hostile template could use to exhaust the stack.
  struct Level {
    explicit Level(TagParser& of);
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --parser.depth_; }
    TagParser& parser;
  };

 private:
  using Kind = Expression::Kind;

  template <class... Parts>
  ExpressionPtr of(Kind kind, std::string text, Parts... parts) const;
  template <std::size_t N, class Next>
  ExpressionPtr binary(const std::array<std::string_view, N>& signs, const Next& next);
  /// Counts the links of chains like a + b + …, whose whole length the evaluator and the destructor go down.
  ExpressionPtr chained(ExpressionPtr made);

  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr joined();
  ExpressionPtr product();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr whole();
  ExpressionPtr named();
  ExpressionPtr bracket();
  /// Takes what follows a value: .name, [item], (arguments).
  ExpressionPtr members(ExpressionPtr value);
  ExpressionPtr item(ExpressionPtr value);
  void arguments(Expression& of);
  ExpressionPtr test(ExpressionPtr value);

  std::vector<Token> words_ = {{}};
  std::size_t word_ = 0;
  std::size_t depth_ = 0;
  std::size_t links_ = 0;
};

}  // namespace tsprun::detail::text::jinja
