// Expressions by recursive descent, with Jinja's precedences: a function a level.
#include "layers/text/template/tag_parser.h"

#include "layers/text/template/texts.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace tsprun::detail::text::jinja {

namespace {

constexpr std::size_t kDeepestTree = 100;
constexpr std::size_t kMostLinks = 400;
constexpr std::size_t kMostArguments = 100;

}  // namespace

TagParser::Level::Level(TagParser& of) : parser(of) {
  if (++of.depth_ > kDeepestTree) of.refuse(fmt::format("more than {} levels of nesting", kDeepestTree));
}

void TagParser::begin(std::vector<Token> tokens) {
  words_ = std::move(tokens);
  word_ = 0;
  links_ = 0;
}

void TagParser::refuse(std::string what) const { throw SyntaxTrouble{std::move(what), peek().line}; }

const Token& TagParser::peek(std::size_t ahead) const { return words_[std::min(word_ + ahead, words_.size() - 1)]; }

bool TagParser::is(std::string_view text, std::size_t ahead) const {
  const Token& token = peek(ahead);
  return (token.kind == Token::Kind::sign || token.kind == Token::Kind::name) && token.text == text;
}

bool TagParser::take(std::string_view text) {
  if (!is(text)) return false;
  ++word_;
  return true;
}

void TagParser::need(std::string_view text) {
  if (!take(text)) refuse(fmt::format("expected '{}'{}", text, found()));
}

std::string TagParser::name() {
  if (peek().kind != Token::Kind::name) refuse(fmt::format("expected a name{}", found()));
  return words_[word_++].text;
}

std::string TagParser::found() const {
  return peek().kind == Token::Kind::end ? " before the tag's end" : fmt::format(", not '{}'", brief(peek().text));
}

void TagParser::done() const {
  if (peek().kind != Token::Kind::end) refuse(fmt::format("expected the tag's end{}", found()));
}

ExpressionPtr TagParser::make(Kind kind, std::string text) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = peek().line;
  made->text = std::move(text);
  return made;
}

template <class... Parts>
ExpressionPtr TagParser::of(Kind kind, std::string text, Parts... parts) const {
  ExpressionPtr made = make(kind, std::move(text));
  (made->parts.push_back(std::move(parts)), ...);
  return made;
}

ExpressionPtr TagParser::tuple(bool choices) {
  ExpressionPtr first = choices ? expression() : either();
  if (!is(",")) return first;
  ExpressionPtr all = of(Kind::tuple, {}, std::move(first));
  while (take(",")) {
    if (peek().kind == Token::Kind::end || is(")") || is("=") || is("if")) break;
    all->parts.push_back(choices ? expression() : either());
  }
  return all;
}

ExpressionPtr TagParser::expression() {
  const Level level(*this);
  ExpressionPtr value = either();
  while (take("if")) {
    ExpressionPtr condition = either();
    ExpressionPtr other = take("else") ? expression() : nullptr;
    value = chained(of(Kind::choice, {}, std::move(condition), std::move(value), std::move(other)));
  }
  return value;
}

ExpressionPtr TagParser::either() {
  ExpressionPtr value = both();
  while (take("or")) value = chained(of(Kind::either, {}, std::move(value), both()));
  return value;
}

ExpressionPtr TagParser::both() {
  ExpressionPtr value = negation();
  while (take("and")) value = chained(of(Kind::both, {}, std::move(value), negation()));
  return value;
}

ExpressionPtr TagParser::negation() {
  const Level level(*this);
  if (take("not")) return of(Kind::negation, {}, negation());
  return comparison();
}

ExpressionPtr TagParser::comparison() {
  ExpressionPtr value = sum();
  ExpressionPtr all;
  for (;;) {
    std::string sign;
    for (const std::string_view each : {"==", "!=", "<", "<=", ">", ">=", "in"}) {
      if (is(each)) sign = each;
    }
    if (sign.empty() && is("not") && is("in", 1)) sign = "not in";
    if (sign.empty()) return all ? std::move(all) : std::move(value);
    if (sign == "not in") ++word_;
    ++word_;
    if (!all) all = of(Kind::compare, {}, std::move(value));
    all->operators.push_back(sign);
    all->parts.push_back(sum());
  }
}

template <std::size_t N, class Next>
ExpressionPtr TagParser::binary(const std::array<std::string_view, N>& signs, const Next& next) {
  ExpressionPtr value = next();
  for (;;) {
    const auto* const sign = std::ranges::find_if(signs, [&](std::string_view each) { return is(each); });
    if (sign == signs.end()) return value;
    ++word_;
    value = chained(of(Kind::binary, std::string(*sign), std::move(value), next()));
  }
}

ExpressionPtr TagParser::sum() {
  return binary(std::array<std::string_view, 2>{"+", "-"}, [this] { return joined(); });
}

ExpressionPtr TagParser::joined() {
  return binary(std::array<std::string_view, 1>{"~"}, [this] { return product(); });
}

ExpressionPtr TagParser::product() {
  return binary(std::array<std::string_view, 4>{"*", "/", "//", "%"}, [this] { return unary(true); });
}

ExpressionPtr TagParser::chained(ExpressionPtr made) {
  if (++links_ > kMostLinks) refuse(fmt::format("an expression of more than {} operators", kMostLinks));
  return made;
}

ExpressionPtr TagParser::unary(bool with_filters) {
  const Level level(*this);
  ExpressionPtr value;
  if (take("-")) value = of(Kind::negative, {}, unary(false));
  else if (take("+")) value = of(Kind::positive, {}, unary(false));
  else value = members(primary());
  if (is("**")) refuse("the operator ** isn't supported");
  return with_filters ? filters(members(std::move(value)), false) : std::move(value);
}

ExpressionPtr TagParser::primary() {
  const Token& token = peek();
  switch (token.kind) {
    case Token::Kind::text: {
      ExpressionPtr text = make(Kind::constant);
      std::string all;
      while (peek().kind == Token::Kind::text) all += words_[word_++].text;
      text->value = std::move(all);
      return text;
    }
    case Token::Kind::whole: return whole();
    case Token::Kind::real: {
      ExpressionPtr real = make(Kind::constant);
      const std::optional<double> number = number_from<double>(words_[word_++].text);
      if (!number) refuse("too large a number");
      real->value = *number;
      return real;
    }
    case Token::Kind::name: return named();
    case Token::Kind::sign: break;
    case Token::Kind::end: refuse("expected an expression before the tag's end");
  }
  if (take("(")) return bracket();
  if (take("[")) {
    ExpressionPtr list = make(Kind::list);
    while (!take("]")) {
      list->parts.push_back(expression());
      if (!is("]")) need(",");
    }
    return list;
  }
  if (take("{")) {
    ExpressionPtr dict = make(Kind::dict);
    while (!take("}")) {
      dict->parts.push_back(expression());
      need(":");
      dict->parts.push_back(expression());
      if (!is("}")) need(",");
    }
    return dict;
  }
  refuse(fmt::format("expected an expression{}", found()));
}

ExpressionPtr TagParser::whole() {
  ExpressionPtr whole = make(Kind::constant);
  const std::optional<std::int64_t> number = number_from<std::int64_t>(words_[word_++].text);
  if (!number) refuse("too large a number");
  whole->value = *number;
  return whole;
}

ExpressionPtr TagParser::named() {
  const std::string text = name();
  ExpressionPtr constant = make(Kind::constant);
  if (text == "true" || text == "True") constant->value = true;
  else if (text == "false" || text == "False") constant->value = false;
  else if (text != "none" && text != "None") return make(Kind::name, text);
  return constant;
}

ExpressionPtr TagParser::bracket() {
  if (take(")")) return make(Kind::tuple);
  ExpressionPtr inner = tuple();
  need(")");
  return inner;
}

ExpressionPtr TagParser::members(ExpressionPtr value) {
  for (;;) {
    if (take(".")) {
      if (peek().kind == Token::Kind::whole) value = chained(of(Kind::item, {}, std::move(value), whole()));
      else value = chained(of(Kind::attribute, name(), std::move(value)));
    } else if (take("[")) {
      value = chained(item(std::move(value)));
    } else if (is("(")) {
      value = chained(of(Kind::call, {}, std::move(value)));
      arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr TagParser::item(ExpressionPtr value) {
  ExpressionPtr first = is(":") ? nullptr : expression();
  if (take("]")) return of(Kind::item, {}, std::move(value), std::move(first));
  if (is(",")) refuse("several indices aren't supported");
  need(":");
  ExpressionPtr last = is(":") || is("]") ? nullptr : expression();
  ExpressionPtr step = take(":") && !is("]") ? expression() : nullptr;
  need("]");
  return of(Kind::slice, {}, std::move(value), std::move(first), std::move(last), std::move(step));
}

void TagParser::arguments(Expression& of) {
  need("(");
  while (!take(")")) {
    if (is("*") || is("**")) refuse("arguments with * aren't supported");
    if (of.parts.size() + of.named.size() > kMostArguments)  // the first part is what is called
      refuse(fmt::format("a call with more than {} arguments", kMostArguments));
    if (peek().kind == Token::Kind::name && is("=", 1)) {
      std::string key = name();
      need("=");
      of.named.emplace_back(std::move(key), expression());
    } else {
      if (!of.named.empty()) refuse("an argument by place behind one by name");
      of.parts.push_back(expression());
    }
    if (!is(")")) need(",");
  }
}

ExpressionPtr TagParser::filters(ExpressionPtr value, bool begun) {
  for (;;) {
    if (begun || take("|")) {
      begun = false;
      value = chained(of(Kind::filter, name(), std::move(value)));
      if (is(".")) refuse(fmt::format("the filter {}. isn't known", brief(value->text)));
      if (is("(")) arguments(*value);
    } else if (take("is")) {
      value = chained(test(std::move(value)));
    } else if (is("(")) {
      value = chained(of(Kind::call, {}, std::move(value)));
      arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr TagParser::test(ExpressionPtr value) {
  const bool negated = take("not");
  ExpressionPtr made = of(Kind::test, {}, std::move(value));
  static constexpr std::array<std::string_view, 6> kComparisons = {"==", "!=", "<", "<=", ">", ">="};
  const auto* const sign = std::ranges::find_if(kComparisons, [&](std::string_view each) { return is(each); });
  if (sign != kComparisons.end()) refuse(fmt::format("expected a test's name, not '{}'", *sign));
  made->text = name();
  const Token& next = peek();
  const bool word = next.kind == Token::Kind::name && next.text != "else" && next.text != "or" && next.text != "and" &&
                    next.text != "is" && next.text != "if" && next.text != "not" && next.text != "in";
  if (is("(")) arguments(*made);
  else if (word || next.kind == Token::Kind::text || next.kind == Token::Kind::whole || next.kind == Token::Kind::real ||
           is("[") || is("{"))
    made->parts.push_back(members(primary()));
  return negated ? of(Kind::negation, {}, std::move(made)) : std::move(made);
}

}  // namespace tsprun::detail::text::jinja
