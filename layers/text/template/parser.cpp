// Statements, by recursive descent.
#include "layers/text/template/lexer.h"
#include "layers/text/template/syntax.h"
#include "layers/text/template/tag_parser.h"
#include "layers/text/template/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace tsprun::detail::text::jinja {

namespace {

/// Statements of Jinja that chat templates don't need.
constexpr std::array<std::string_view, 10> kNotRead = {"include", "import",     "from",  "extends", "block",
                                                       "call",    "autoescape", "trans", "do",      "with"};

constexpr std::string_view kRead = "for, if, set, macro, filter, generation, break, continue and raw";
constexpr std::size_t kMostParameters = 100;

class Parser : private TagParser {
 public:
  explicit Parser(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Body all() {
    Body body = statements({});
    if (piece_ < pieces_.size()) refuse(fmt::format("{{% {} %}} without its beginning", brief(peek().text)));
    return body;
  }

 private:
  /// Takes statements up to a block that begins with one of `ends`, whose tokens are then the current ones, or to the end.
  Body statements(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body body;
    while (piece_ < pieces_.size()) {
      Piece& piece = pieces_[piece_];
      if (piece.kind == Piece::Kind::text) {
        body.push_back({.kind = Statement::Kind::text, .line = piece.line, .text = std::move(piece.text)});
        ++piece_;
        continue;
      }
      begin(std::move(piece.tokens));
      if (piece.kind == Piece::Kind::output) {
        ++piece_;
        body.push_back({.kind = Statement::Kind::output, .line = piece.line, .expression = tuple()});
        done();
        continue;
      }
      if (std::ranges::any_of(ends, [&](std::string_view end) { return is(end); })) return body;
      if (peek().text.starts_with("end") || is("else") || is("elif")) return body;
      ++piece_;
      body.push_back(statement(piece.line));
    }
    if (ends.size() > 0) refuse(fmt::format("the template ends before {{% {} %}}", *(ends.end() - 1)));
    return body;
  }

  /// Goes on behind the block at which statements() stopped, which must be this one.
  void end(std::string_view text) {
    if (piece_ >= pieces_.size() || !take(text)) refuse(fmt::format("expected {{% {} %}}{}", text, found()));
    ++piece_;
    done();
  }

  Statement statement(std::size_t line) {
    const std::string word = name();
    Statement result{.line = line};
    if (word == "if") return branch(line);
    if (word == "for") return loop(line);
    if (word == "set") return set(line);
    if (word == "macro") return macro(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0)
        refuse(fmt::format("{{% {} %}} outside of a loop; it may only stand between {{% for %}} and {{% endfor %}}", word));
      result.kind = word == "break" ? Statement::Kind::leave : Statement::Kind::next;
      done();
      return result;
    }
    if (word == "generation") {  // marks what an assistant said, for training
      done();
      result.kind = Statement::Kind::group;
      result.body = statements({"endgeneration"});
      end("endgeneration");
      return result;
    }
    if (word == "filter") {
      result.kind = Statement::Kind::filter;
      result.expression = filters(make(Expression::Kind::name), true);
      done();
      result.body = statements({"endfilter"});
      end("endfilter");
      return result;
    }
    const std::string named = brief(word);
    if (std::ranges::find(kNotRead, std::string_view(word)) != kNotRead.end())
      refuse(fmt::format("{{% {} %}} isn't supported; {} are", named, kRead));
    refuse(fmt::format("{{% {} %}} isn't known; {} are", named, kRead));
  }

  Statement branch(std::size_t line) {
    Statement result{.kind = Statement::Kind::branch, .line = line, .expression = tuple()};
    done();
    result.body = statements({"elif", "else", "endif"});
    if (piece_ < pieces_.size() && take("elif")) {
      const Level level(*this);
      result.other.push_back(branch(pieces_[piece_++].line));
      return result;
    }
    if (piece_ < pieces_.size() && is("else")) {
      end("else");
      result.other = statements({"endif"});
    }
    end("endif");
    return result;
  }

  Statement loop(std::size_t line) {
    Statement result{.kind = Statement::Kind::loop, .line = line, .target = target()};
    need("in");
    result.expression = tuple(false);
    if (take("if")) result.condition = expression();
    if (is("recursive")) refuse("recursive loops aren't supported");
    done();
    ++loops_;
    result.body = statements({"else", "endfor"});
    --loops_;
    if (piece_ < pieces_.size() && is("else")) {
      end("else");
      result.other = statements({"endfor"});
    }
    end("endfor");
    return result;
  }

  Target target() {
    Target result;
    const bool closed = take("(");
    do {
      if (closed ? is(")") : is("in") || is("=")) break;
      result.names.push_back(name());
      result.tuple = result.tuple || is(",");
    } while (take(","));
    if (closed) need(")");
    if (result.names.empty()) refuse(fmt::format("expected a name{}", found()));
    return result;
  }

  Statement set(std::size_t line) {
    Statement result{.kind = Statement::Kind::set, .line = line, .target = target()};
    if (!result.target.tuple && take(".")) result.target.attribute = name();
    if (take("=")) {
      result.expression = tuple();
      done();
      return result;
    }
    result.kind = Statement::Kind::set_block;
    if (is("|")) result.expression = filters(make(Expression::Kind::name), false);
    done();
    result.body = statements({"endset"});
    end("endset");
    return result;
  }

  Statement macro(std::size_t line) {
    Statement result{.kind = Statement::Kind::macro, .line = line, .text = name()};
    need("(");
    while (!take(")")) {
      if (result.parameters.size() == kMostParameters)
        refuse(fmt::format("a macro with more than {} parameters", kMostParameters));
      std::string parameter = name();
      result.parameters.emplace_back(std::move(parameter), take("=") ? expression() : nullptr);
      if (!is(")")) need(",");
    }
    done();
    const std::size_t loops = std::exchange(loops_, 0);
    result.body = statements({"endmacro"});
    loops_ = loops;
    end("endmacro");
    return result;
  }

  std::vector<Piece> pieces_;
  std::size_t piece_ = 0;
  std::size_t loops_ = 0;  // within whose bodies the parser is
};

}  // namespace

Body parse(std::string_view source) { return Parser(pieces_of(source)).all(); }

}  // namespace tsprun::detail::text::jinja
