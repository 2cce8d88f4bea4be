// A template as a tree of statements and expressions, and the parser that makes it.
#pragma once

#include "layers/text/template/value.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : std::uint8_t {
    constant,   ///< value
    name,       ///< text
    list,       ///< parts
    tuple,      ///< parts
    dict,       ///< parts: key, value, key, value …
    attribute,  ///< parts[0].text
    item,       ///< parts[0][parts[1]]
    slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], of which all but the first may be null
    call,       ///< parts[0](parts[1] …, named)
    filter,     ///< parts[0] | text(parts[1] …, named)
    test,       ///< parts[0] is text(parts[1] …, named)
    negative,   ///< -parts[0]
    positive,   ///< +parts[0]
    negation,   ///< not parts[0]
    binary,     ///< parts[0] text parts[1], an operator of arithmetic or ~
    compare,    ///< parts[0] op parts[1] op parts[2] …, with `operators`
    both,       ///< parts[0] and parts[1]
    either,     ///< parts[0] or parts[1]
    choice,     ///< parts[1] if parts[0] else parts[2], which may be null
  };
  Kind kind = Kind::constant;
  std::size_t line = 0;
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  std::vector<std::string> operators = {};
};

struct Statement;
using Body = std::vector<Statement>;

/// Target that is set or stepped through: names, or a name of a namespace ("ns.found").
struct Target {
  std::vector<std::string> names;
  std::string attribute = {};
  bool tuple = false;
};

struct Statement {
  enum class Kind : std::uint8_t {
    text,       ///< text
    output,     ///< expression
    branch,     ///< if expression: body, else: other
    loop,       ///< for target in expression if condition: body, else: other
    set,        ///< target = expression
    set_block,  ///< target = body, through the filters of `expression`, whose innermost part is the name ""
    filter,     ///< body, through the filters of `expression` likewise
    macro,      ///< text(parameters): body
    group,      ///< body
    leave,      ///< break
    next,       ///< continue
  };
  Kind kind = Kind::text;
  std::size_t line = 0;
  std::string text = {};
  Target target = {};
  ExpressionPtr expression = {};
  ExpressionPtr condition = {};
  std::vector<std::pair<std::string, ExpressionPtr>> parameters = {};
  Body body = {};
  Body other = {};
};

/// Parses a template. Throws SyntaxTrouble, by name for what Jinja has and this doesn't.
Body parse(std::string_view source);

}  // namespace tsprun::detail::text::jinja
