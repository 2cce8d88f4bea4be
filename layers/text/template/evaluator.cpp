// Statements and expressions, one function a kind. Scopes are Jinja's: a loop's body and a macro have their own, a branch hasn't.
#include "layers/text/template/evaluator.h"

#include "layers/text/template/functions.h"
#include "layers/text/template/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace tsprun::detail::text::jinja {

namespace {

constexpr std::size_t kUnitsOfAStep = 100;
constexpr std::size_t kUnitsOfARound = 1000;  // of a loop, with its variable `loop`
constexpr std::size_t kUnitsOfAScope = 30;    // in which a name is looked for
constexpr std::size_t kDeepestCalls = 100;
constexpr std::size_t kDeepestRun = 1000;  // of statements and expressions, through all calls: what the stack holds
using Kind = Expression::Kind;

struct Scope {
  std::map<std::string, Value, std::less<>> names;
  std::shared_ptr<Scope> outer;
};

enum class Flow : std::uint8_t { on, leave, next };

class Evaluator {
 public:
  Evaluator(const Dict& variables, std::time_t now) : root_(std::make_shared<Scope>()), scope_(root_) {
    for (Function& each : global_functions(now)) root_->names.emplace(each.name, std::move(each));
    for (const auto& [name, value] : variables.entries) root_->names.insert_or_assign(name, value);
  }

  std::string run(const Body& body) {
    try {
      std::string text;
      statements(body, text);
      return text;
    } catch (const Trouble& trouble) {
      throw RunTrouble{trouble.what, line_, false};
    } catch (const Raised& raised) {
      throw RunTrouble{raised.what, line_, true};
    }
  }

 private:
  void step(std::size_t line) {
    line_ = line;
    spend(kUnitsOfAStep);
  }

  /// A level of the evaluator's own calls.
  struct Level {
    explicit Level(Evaluator& of) : evaluator(of) {
      if (++of.depth_ > kDeepestRun) throw Trouble{fmt::format("more than {} levels of nesting", kDeepestRun)};
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --evaluator.depth_; }
    Evaluator& evaluator;
  };

  const Value* find(std::string_view name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
      spend(kUnitsOfAScope);
      if (const auto at = scope->names.find(name); at != scope->names.end()) return &at->second;
    }
    return nullptr;
  }

  /// Enters a scope, and leaves it again.
  struct Inside {
    Inside(Evaluator& of, std::shared_ptr<Scope> scope) : evaluator(of), before(std::exchange(of.scope_, std::move(scope))) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { evaluator.scope_ = std::move(before); }
    Evaluator& evaluator;
    std::shared_ptr<Scope> before;
  };
  std::shared_ptr<Scope> inner() const {
    auto scope = std::make_shared<Scope>();
    scope->outer = scope_;
    return scope;
  }

  // Statements.

  Flow statements(const Body& body, std::string& to) {
    for (const Statement& each : body) {
      if (const Flow flow = statement(each, to); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  void print(std::string_view text, std::string& to) {
    spend(text.size());
    to += text;
  }

  Flow statement(const Statement& of, std::string& to) {
    const Level level(*this);
    step(of.line);
    switch (of.kind) {
      case Statement::Kind::text: print(of.text, to); break;
      case Statement::Kind::output: value(*of.expression).print(to); break;
      case Statement::Kind::branch: return statements(value(*of.expression).truth() ? of.body : of.other, to);
      case Statement::Kind::loop: return loop(of, to);
      case Statement::Kind::set: assign(of.target, value(*of.expression)); break;
      case Statement::Kind::set_block:
      case Statement::Kind::filter: {
        Value made;
        if (const Flow flow = capture(of, made); flow != Flow::on) return flow;
        if (of.kind == Statement::Kind::filter) made.print(to);
        else assign(of.target, std::move(made));
        break;
      }
      case Statement::Kind::macro: scope_->names.insert_or_assign(of.text, macro(of)); break;
      case Statement::Kind::group: return statements(of.body, to);
      case Statement::Kind::leave: return Flow::leave;
      case Statement::Kind::next: return Flow::next;
    }
    return Flow::on;
  }

  /// Gives what a block's body prints, through its filters; nothing, if the body leaves a loop around the block.
  Flow capture(const Statement& of, Value& made) {
    std::string text;
    {
      const Inside inside(*this, inner());
      if (const Flow flow = statements(of.body, text); flow != Flow::on) return flow;
    }
    made = std::move(text);
    if (!of.expression) return Flow::on;
    const Inside inside(*this, inner());
    scope_->names.emplace("", std::move(made));
    made = value(*of.expression);
    return Flow::on;
  }

  void assign(const Target& target, Value value) {
    if (!target.attribute.empty()) {
      const Value* space = find(target.names.front());
      if (space == nullptr) throw Trouble{fmt::format("'{}' is undefined", brief(target.names.front()))};
      space->set_name(target.attribute, std::move(value));
    } else if (target.tuple) {
      const std::vector<Value> items = value.items();
      if (items.size() != target.names.size())
        throw Trouble{fmt::format("{} items for {} names", items.size(), target.names.size())};
      for (std::size_t i = 0; i < items.size(); ++i) scope_->names.insert_or_assign(target.names[i], items[i]);
    } else {
      scope_->names.insert_or_assign(target.names.front(), std::move(value));
    }
  }

  /// Returns what `loop` is in round `at`.
  static Value loop_value(const std::vector<Value>& items, std::size_t at) {
    const auto number = [](std::size_t value) { return Value(static_cast<std::int64_t>(value)); };
    Dict loop{.entries = {{"index", number(at + 1)},
                          {"index0", number(at)},
                          {"revindex", number(items.size() - at)},
                          {"revindex0", number(items.size() - at - 1)},
                          {"first", at == 0},
                          {"last", at + 1 == items.size()},
                          {"length", number(items.size())},
                          {"depth", std::int64_t{1}},
                          {"depth0", std::int64_t{0}},
                          {"previtem", at > 0 ? items[at - 1] : Value(Undefined("loop.previtem"))},
                          {"nextitem", at + 1 < items.size() ? items[at + 1] : Value(Undefined("loop.nextitem"))},
                          {"cycle", Function{"cycle",
                                             [at](Arguments& given) {
                                               if (given.places.empty()) throw Trouble{"cycle takes values"};
                                               return given.places[at % given.places.size()];
                                             }}}},
              .names = true};
    return loop;
  }

  /// Runs a loop. Returns how its `else` goes on, which belongs to the loop around.
  Flow loop(const Statement& of, std::string& to) {
    std::vector<Value> items = value(*of.expression).items();
    if (of.condition) {
      std::vector<Value> chosen;
      for (Value& item : items) {
        const Inside inside(*this, inner());
        assign(of.target, item);
        if (value(*of.condition).truth()) chosen.push_back(std::move(item));
      }
      items = std::move(chosen);
    }
    if (items.empty()) {
      const Inside inside(*this, inner());
      return statements(of.other, to);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      line_ = of.line;
      spend(kUnitsOfARound);
      const Inside inside(*this, inner());
      scope_->names.emplace("loop", loop_value(items, i));
      assign(of.target, items[i]);
      if (statements(of.body, to) == Flow::leave) break;
    }
    return Flow::on;
  }

  Value macro(const Statement& of) {
    const std::weak_ptr<Scope> around = scope_;
    return Function{of.text, [this, &of, around](Arguments& given) -> Value {
                      if (++calls_ > kDeepestCalls)
                        throw Trouble{fmt::format("more than {} calls within each other", kDeepestCalls)};
                      auto scope = std::make_shared<Scope>();
                      scope->outer = around.lock();
                      if (!scope->outer) scope->outer = root_;
                      bind_parameters(of, given, *scope);
                      std::string text;
                      {
                        const Inside inside(*this, scope);
                        for (const auto& [name, usual] : of.parameters) {
                          if (scope->names.contains(name)) continue;
                          Value missing = usual ? value(*usual) : Value(Undefined(name));
                          scope->names.emplace(name, std::move(missing));
                        }
                        statements(of.body, text);
                      }
                      --calls_;
                      return text;
                    }};
  }

  static void bind_parameters(const Statement& of, const Arguments& given, Scope& scope) {
    if (given.places.size() > of.parameters.size())
      throw Trouble{
          fmt::format("the macro {} takes {} arguments, not {}", brief(of.text), of.parameters.size(), given.places.size())};
    for (std::size_t i = 0; i < given.places.size(); ++i) scope.names.emplace(of.parameters[i].first, given.places[i]);
    for (const auto& [name, argument] : given.names) {
      const bool known =
          std::ranges::any_of(of.parameters, [&wanted = name](const auto& parameter) { return parameter.first == wanted; });
      if (!known || !scope.names.emplace(name, argument).second)
        throw Trouble{fmt::format("the macro {} takes no argument {} here", brief(of.text), brief(name))};
    }
  }

  // Expressions.

  Value value(const Expression& of) {
    const Level level(*this);
    step(of.line);
    return evaluated(of);
  }

  Value part(const Expression& of, std::size_t i) { return of.parts[i] ? value(*of.parts[i]) : Value(); }

  Arguments arguments(const Expression& of) {
    Arguments given;
    for (std::size_t i = 1; i < of.parts.size(); ++i) given.places.push_back(value(*of.parts[i]));
    for (const auto& [name, expression] : of.named) given.names.emplace_back(name, value(*expression));
    return given;
  }

  Value evaluated(const Expression& of) {
    switch (of.kind) {
      case Kind::constant: return of.value;
      case Kind::name: {
        const Value* found = find(of.text);
        return found != nullptr ? *found : Value(Undefined(of.text));
      }
      case Kind::list:
      case Kind::tuple: {
        List list{.items = {}, .tuple = of.kind == Kind::tuple};
        for (const ExpressionPtr& each : of.parts) list.items.push_back(value(*each));
        return list;
      }
      case Kind::dict: {
        Dict dict;
        for (std::size_t i = 0; i < of.parts.size(); i += 2) dict.set(part(of, i).text("a dictionary's key"), part(of, i + 1));
        return dict;
      }
      case Kind::attribute: return named(attribute_of(part(of, 0), of.text), of);
      case Kind::item: return named(item_of(part(of, 0), part(of, 1)), of);
      case Kind::slice: return slice_of(part(of, 0), part(of, 1), part(of, 2), part(of, 3));
      case Kind::call: return call(of);
      case Kind::filter: {
        const Value subject = part(of, 0);
        return apply_filter(of.text, subject, arguments(of));
      }
      case Kind::test: {
        const Value subject = part(of, 0);
        return apply_test(of.text, subject, arguments(of));
      }
      case Kind::negative: {
        const Value number = part(of, 0);
        if (number.as<double>() != nullptr) return -number.number();
        return arithmetic("-", std::int64_t{0}, number);
      }
      case Kind::positive: return sum_of(std::int64_t{0}, part(of, 0));
      case Kind::negation: return !part(of, 0).truth();
      case Kind::binary: {
        const Value one = part(of, 0);
        const Value two = part(of, 1);
        if (of.text == "~") {
          std::string text;
          one.print(text);
          two.print(text);
          return text;
        }
        return of.text == "+" ? sum_of(one, two) : arithmetic(of.text, one, two);
      }
      case Kind::compare: return compare(of);
      case Kind::both:
      case Kind::either: {
        Value first = part(of, 0);
        return first.truth() == (of.kind == Kind::both) ? part(of, 1) : std::move(first);
      }
      case Kind::choice: break;
    }
    if (part(of, 0).truth()) return part(of, 1);
    return of.parts[2] ? part(of, 2) : Value(Undefined("what 'if' without 'else' gives"));
  }

  /// Gives what isn't there the whole name under which it was looked for.
  static Value named(Value found, const Expression& of) {
    const Undefined* missing = found.as<Undefined>();
    if (missing == nullptr || of.parts[0]->kind != Kind::name) return found;
    return Undefined(fmt::format("{}.{}", of.parts[0]->text, missing->name));
  }

  Value call(const Expression& of) {
    const Value function = part(of, 0);
    Arguments given = arguments(of);
    if (function.is_undefined()) throw Trouble{fmt::format("'{}' is undefined", function.as<Undefined>()->name)};
    const Function* found = function.as<Function>();
    if (found == nullptr) throw Trouble{fmt::format("{} can't be called", function.type())};
    line_ = of.line;
    return found->call(given);
  }

  Value compare(const Expression& of) {
    Value left = part(of, 0);
    for (std::size_t i = 0; i < of.operators.size(); ++i) {
      const std::string& sign = of.operators[i];
      Value right = part(of, i + 1);
      bool holds = false;
      if (sign == "==") holds = left == right;
      else if (sign == "!=") holds = !(left == right);
      else if (sign == "<") holds = std::is_lt(left.order(right));
      else if (sign == ">") holds = std::is_gt(left.order(right));
      else if (sign == "<=") holds = std::is_lteq(left.order(right));
      else if (sign == ">=") holds = std::is_gteq(left.order(right));
      else holds = contains(right, left) == (sign == "in");
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  Allowance allowance_;
  std::shared_ptr<Scope> root_;
  std::shared_ptr<Scope> scope_;
  std::size_t line_ = 1;
  std::size_t calls_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace

std::string run(const Body& body, const Dict& variables, std::time_t now) { return Evaluator(variables, now).run(body); }

}  // namespace tsprun::detail::text::jinja
