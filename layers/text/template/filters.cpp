// Jinja's filters and tests, those that chat templates use.
#include "layers/text/template/functions.h"
#include "layers/text/template/texts.h"
#include "transport/number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace tsprun::detail::text::jinja {

namespace {

using Filter = Value (*)(const Value&, const Arguments&);
using Test = bool (*)(const Value&, const Arguments&);

constexpr std::size_t kUnitsOfACall = 100;  // of a filter or a test
constexpr std::int64_t kWidest = 1000;      // of an indent

/// Returns a method of a text as a filter, which prints other values first.
template <const char* kName>
Value by_method(const Value& value, const Arguments& given) {
  Arguments copy = given;
  return method(value.printed(), kName)->as<Function>()->call(copy);
}
constexpr char kUpper[] = "upper";
constexpr char kLower[] = "lower";
constexpr char kCapitalize[] = "capitalize";
constexpr char kReplace[] = "replace";

Value trim(const Value& value, const Arguments& given) {
  const auto args = bind("trim", given, {"chars"});
  const Value text = value.printed();
  const std::string_view inner =
      strip(text.text("trim"), args[0] == nullptr || args[0]->is_none() ? nullptr : &args[0]->text("trim"), true, true);
  spend(inner.size());
  return std::string(inner);
}

Value tojson(const Value& value, const Arguments& given) {
  const auto args = bind("tojson", given, {"indent", "ensure_ascii", "separators", "sort_keys"});
  JsonStyle style;
  if (args[0] != nullptr && !args[0]->is_none())
    style.indent = static_cast<int>(std::clamp<std::int64_t>(args[0]->whole("tojson"), 0, 100));
  if (args[1] != nullptr && args[1]->truth()) throw Trouble{"tojson: ensure_ascii isn't supported"};
  if (args[2] != nullptr && !args[2]->is_none()) {
    const List* pair = args[2]->as<List>();
    if (pair == nullptr || pair->items.size() != 2) throw Trouble{"tojson: separators are two texts"};
    style.between = pair->items[0].text("tojson");
    style.colon = pair->items[1].text("tojson");
  }
  style.sorted = args[3] != nullptr && args[3]->truth();
  return to_json(value, style);
}

Value length(const Value& value, const Arguments& given) {
  bind("length", given, {});
  return static_cast<std::int64_t>(value.length());
}

Value title(const Value& value, const Arguments& given) {
  bind("title", given, {});
  return titled(value.printed().text("title"));
}

Value or_default(const Value& value, const Arguments& given) {
  const auto args = bind("default", given, {"default_value", "boolean"});
  const bool missing = value.is_undefined() || (args[1] != nullptr && args[1]->truth() && !value.truth());
  return missing ? (args[0] == nullptr ? Value("") : *args[0]) : value;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns what a path of names and indices leads to, "function.arguments.0".
Value member(const Value& value, std::string_view path) {
  Value found = value;
  while (!path.empty()) {
    const std::string_view name = take_word(path, '.');
    spend(kUnitsOfACall + name.size());
    const auto number = is_digits(name) ? number_from<std::int64_t>(name) : std::nullopt;
    found = number ? item_of(found, *number) : item_of(found, std::string(name));
  }
  return found;
}

Value join(const Value& value, const Arguments& given) {
  const auto args = bind("join", given, {"d", "attribute"});
  const Value between = args[0] == nullptr ? Value("") : args[0]->printed();
  std::string text;
  bool first = true;
  for (const Value& each : value.items()) {
    if (!std::exchange(first, false)) between.print(text);
    if (args[1] == nullptr) each.print(text);
    else member(each, args[1]->text("join")).print(text);
  }
  return text;
}

Value first(const Value& value, const Arguments& given) {
  bind("first", given, {});
  const std::vector<Value> items = value.items();
  return items.empty() ? Value(Undefined("the first item")) : items.front();
}
Value last(const Value& value, const Arguments& given) {
  bind("last", given, {});
  const std::vector<Value> items = value.items();
  return items.empty() ? Value(Undefined("the last item")) : items.back();
}
Value list(const Value& value, const Arguments& given) {
  bind("list", given, {});
  return List{.items = value.items()};
}
Value string(const Value& value, const Arguments& given) {
  bind("string", given, {});
  return value.printed();
}
/// Returns a number without its fraction. Throws Trouble for one that Python's integers hold, and ours don't.
Value without_fraction(double number) {
  if (std::isinf(number) || std::abs(number) >= 0x1p63) throw Trouble{"int: too large a number"};
  return static_cast<std::int64_t>(number);
}
Value whole(const Value& value, const Arguments& given) {
  const auto args = bind("int", given, {"default"});
  Value usual = args[0] == nullptr ? Value(std::int64_t{0}) : *args[0];
  if (const double* number = value.as<double>()) return std::isnan(*number) ? usual : without_fraction(*number);
  if (value.is_number()) return value.whole("int");
  if (const auto* text = value.as<std::string>()) {
    spend(text->size());
    std::string_view digits = strip(*text, nullptr, true, true);
    if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
    if (const auto number = number_from<std::int64_t>(digits)) return *number;
    if (is_digits(digits.substr(digits.starts_with('-') ? 1 : 0))) throw Trouble{"int: too large a number"};
    if (const auto number = number_from<double>(digits); number && std::isfinite(*number)) return without_fraction(*number);
  }
  return usual;
}
Value real(const Value& value, const Arguments& given) {
  const auto args = bind("float", given, {"default"});
  if (value.is_number()) return value.number();
  if (const auto* text = value.as<std::string>()) {
    spend(text->size());
    if (const auto number = number_from<double>(strip(*text, nullptr, true, true))) return *number;
  }
  return args[0] == nullptr ? Value(0.0) : *args[0];
}
Value absolute(const Value& value, const Arguments& given) {
  bind("abs", given, {});
  if (value.as<double>() != nullptr) return std::abs(value.number());
  const std::int64_t number = value.whole("abs");
  return number < 0 ? arithmetic("-", std::int64_t{0}, number) : Value(number);
}

Value reverse(const Value& value, const Arguments& given) {
  bind("reverse", given, {});
  return slice_of(value.as<std::string>() != nullptr ? value : Value(List{.items = value.items()}), {}, {}, std::int64_t{-1});
}

Value items(const Value& value, const Arguments& given) {
  bind("items", given, {});
  if (value.is_undefined()) return List{};
  if (value.as<Dict>() == nullptr) throw Trouble{fmt::format("items takes a dict, not {}", value.type())};
  Arguments none;
  return method(value, "items")->as<Function>()->call(none);
}

/// Orders values; texts without regard to the case of ASCII's letters unless `by_case`.
void sort_by(std::vector<Value>& values, bool by_case, bool reversed, const std::function<Value(const Value&)>& key) {
  const auto key_of = [&](const Value& value) {
    Value found = key(value);
    if (by_case || found.as<std::string>() == nullptr) return found;
    Arguments none;
    return method(found, "lower")->as<Function>()->call(none);
  };
  spend(2 * sizeof(std::pair<Value, Value>) * values.size());  // the sort takes as much again
  std::vector<std::pair<Value, Value>> pairs;
  for (const Value& value : values) pairs.emplace_back(key_of(value), value);
  // Found out first: a comparison that throws within a sort would leave it halfway.
  for (std::size_t i = 1; i < pairs.size(); ++i) static_cast<void>(pairs[0].first.order(pairs[i].first));
  std::ranges::stable_sort(pairs, [&](const auto& one, const auto& two) {
    return std::is_lt(reversed ? two.first.order(one.first) : one.first.order(two.first));
  });
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = pairs[i].second;
}

Value sorted(const Value& value, const Arguments& given) {
  const auto args = bind("sort", given, {"reverse", "case_sensitive", "attribute"});
  List list{.items = value.items()};
  const std::string_view path = args[2] == nullptr ? std::string_view() : args[2]->text("sort");
  sort_by(list.items, args[1] != nullptr && args[1]->truth(), args[0] != nullptr && args[0]->truth(),
          [&](const Value& each) { return member(each, path); });
  return list;
}

Value dictsort(const Value& value, const Arguments& given) {
  const auto args = bind("dictsort", given, {"case_sensitive", "by", "reverse"});
  List list{.items = items(value, {}).items()};
  const bool by_value = args[1] != nullptr && args[1]->text("dictsort") == "value";
  sort_by(list.items, args[0] != nullptr && args[0]->truth(), args[2] != nullptr && args[2]->truth(),
          [&](const Value& pair) { return pair.as<List>()->items[by_value ? 1 : 0]; });
  return list;
}

Value unique(const Value& value, const Arguments& given) {
  const auto args = bind("unique", given, {"case_sensitive"});
  List list;
  std::vector<Value> seen;
  for (const Value& each : value.items()) {
    Value key = each;
    Arguments none;
    if (each.as<std::string>() != nullptr && !(args[0] != nullptr && args[0]->truth()))
      key = method(each, "lower")->as<Function>()->call(none);
    if (std::ranges::find(seen, key) != seen.end()) continue;
    spend(2 * kUnitsOfAnItem);
    seen.push_back(key);
    list.items.push_back(each);
  }
  return list;
}

Value indent(const Value& value, const Arguments& given) {
  const auto args = bind("indent", given, {"width", "first", "blank"});
  const auto spaces = [](std::int64_t width) {
    if (width > kWidest) throw Trouble{fmt::format("indent: more than {} blanks", kWidest)};
    return std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  };
  const Value by = args[0] == nullptr                      ? Value(spaces(4))
                   : args[0]->as<std::string>() != nullptr ? *args[0]
                                                           : Value(spaces(args[0]->whole("indent")));
  const bool at_first = args[1] != nullptr && args[1]->truth();
  const bool blank = args[2] != nullptr && args[2]->truth();
  Arguments none;
  const Value text = sum_of(value.printed(), "\n");
  const Value lines = method(text, "splitlines")->as<Function>()->call(none);
  std::string result;
  bool first = true;
  for (const Value& line : lines.as<List>()->items) {
    const bool indents = first ? at_first : blank || line.truth();
    if (!std::exchange(first, false)) result += '\n';
    if (indents) by.print(result);
    line.print(result);
  }
  return result;
}

Value map(const Value& value, const Arguments& given) {
  List list;
  Arguments rest = given;
  if (rest.places.empty()) {
    const auto args = bind("map", given, {"attribute", "default"});
    if (args[0] == nullptr) throw Trouble{"map takes a filter's name, or attribute="};
    for (const Value& each : value.items()) {
      Value found = member(each, args[0]->text("map"));
      spend(kUnitsOfAnItem);
      list.items.push_back(found.is_undefined() && args[1] != nullptr ? *args[1] : found);
    }
    return list;
  }
  const Value name = rest.places.front();
  rest.places.erase(rest.places.begin());
  for (const Value& each : value.items()) {
    spend(kUnitsOfAnItem);
    list.items.push_back(apply_filter(name.text("map"), each, rest));
  }
  return list;
}

/// select, reject, selectattr, rejectattr.
Value chosen(const Value& value, const Arguments& given, const char* what, bool by_member, bool keep) {
  Arguments rest = given;
  const auto take = [&]() -> std::optional<Value> {
    if (rest.places.empty()) return {};
    static_cast<void>(rest.places.front().text(what));
    Value text = rest.places.front();
    rest.places.erase(rest.places.begin());
    return text;
  };
  const std::optional<Value> path = by_member ? take() : std::optional<Value>("");
  if (!path) throw Trouble{fmt::format("{} takes an attribute", what)};
  const std::optional<Value> test = take();
  List list;
  for (const Value& each : value.items()) {
    const Value of = member(each, path->text(what));
    if ((test ? apply_test(test->text(what), of, rest) : of.truth()) != keep) continue;
    spend(kUnitsOfAnItem);
    list.items.push_back(each);
  }
  return list;
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> all = {
      {"trim", trim},
      {"tojson", tojson},
      {"length", length},
      {"count", length},
      {"default", or_default},
      {"d", or_default},
      {"join", join},
      {"first", first},
      {"last", last},
      {"list", list},
      {"string", string},
      {"int", whole},
      {"float", real},
      {"abs", absolute},
      {"reverse", reverse},
      {"items", items},
      {"sort", sorted},
      {"dictsort", dictsort},
      {"unique", unique},
      {"indent", indent},
      {"map", map},
      {"upper", by_method<kUpper>},
      {"lower", by_method<kLower>},
      {"title", title},
      {"capitalize", by_method<kCapitalize>},
      {"replace", by_method<kReplace>},
      {"safe", [](const Value& value, const Arguments&) { return value; }},
      {"select", [](const Value& value, const Arguments& given) { return chosen(value, given, "select", false, true); }},
      {"reject", [](const Value& value, const Arguments& given) { return chosen(value, given, "reject", false, false); }},
      {"selectattr", [](const Value& value, const Arguments& given) { return chosen(value, given, "selectattr", true, true); }},
      {"rejectattr", [](const Value& value, const Arguments& given) { return chosen(value, given, "rejectattr", true, false); }}};
  return all;
}

const Value& only(const char* what, const Arguments& given) {
  if (given.places.size() != 1 || !given.names.empty()) throw Trouble{fmt::format("the test {} takes one value", what)};
  return given.places.front();
}

bool is_odd(const Value& value) { return value.whole("the test odd") % 2 != 0; }

const std::map<std::string, Test, std::less<>>& tests() {
  constexpr Test kEqual = [](const Value& value, const Arguments& given) { return value == only("equalto", given); };
  constexpr Test kLess = [](const Value& value, const Arguments& given) {
    return std::is_lt(value.order(only("lessthan", given)));
  };
  constexpr Test kGreater = [](const Value& value, const Arguments& given) {
    return std::is_gt(value.order(only("greaterthan", given)));
  };
  static const std::map<std::string, Test, std::less<>> all = {
      {"defined", [](const Value& value, const Arguments&) { return !value.is_undefined(); }},
      {"undefined", [](const Value& value, const Arguments&) { return value.is_undefined(); }},
      {"none", [](const Value& value, const Arguments&) { return value.is_none(); }},
      {"string", [](const Value& value, const Arguments&) { return value.as<std::string>() != nullptr; }},
      {"number", [](const Value& value, const Arguments&) { return value.is_number(); }},
      {"integer", [](const Value& value, const Arguments&) { return value.as<std::int64_t>() != nullptr; }},
      {"float", [](const Value& value, const Arguments&) { return value.as<double>() != nullptr; }},
      {"boolean", [](const Value& value, const Arguments&) { return value.as<bool>() != nullptr; }},
      {"true", [](const Value& value, const Arguments&) { return value.as<bool>() != nullptr && value.truth(); }},
      {"false", [](const Value& value, const Arguments&) { return value.as<bool>() != nullptr && !value.truth(); }},
      {"mapping", [](const Value& value, const Arguments&) { return value.as<Dict>() != nullptr && !value.as<Dict>()->names; }},
      {"iterable",
       [](const Value& value, const Arguments&) {
         return value.is_undefined() || value.as<List>() != nullptr || value.as<std::string>() != nullptr ||
                (value.as<Dict>() != nullptr && !value.as<Dict>()->names);
       }},
      {"sequence",
       [](const Value& value, const Arguments&) {
         return value.is_undefined() || value.as<List>() != nullptr || value.as<std::string>() != nullptr ||
                (value.as<Dict>() != nullptr && !value.as<Dict>()->names);
       }},
      {"callable", [](const Value& value, const Arguments&) { return value.as<Function>() != nullptr; }},
      {"equalto", kEqual},
      {"eq", kEqual},
      {"ne", [](const Value& value, const Arguments& given) { return !(value == only("ne", given)); }},
      {"in", [](const Value& value, const Arguments& given) { return contains(only("in", given), value); }},
      {"odd", [](const Value& value, const Arguments&) { return is_odd(value); }},
      {"even", [](const Value& value, const Arguments&) { return !is_odd(value); }},
      {"divisibleby",
       [](const Value& value, const Arguments& given) {
         const std::int64_t by = only("divisibleby", given).whole("the test divisibleby");
         if (by == 0) throw Trouble{"the test divisibleby takes a number other than 0"};
         return value.whole("the test divisibleby") % (by == -1 ? 1 : by) == 0;
       }},
      {"lt", kLess},
      {"lessthan", kLess},
      {"gt", kGreater},
      {"greaterthan", kGreater},
      {"le", [](const Value& value, const Arguments& given) { return std::is_lteq(value.order(only("le", given))); }},
      {"ge", [](const Value& value, const Arguments& given) { return std::is_gteq(value.order(only("ge", given))); }}};
  return all;
}

std::string names_of(const auto& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  spend(kUnitsOfACall);
  const auto filter = filters().find(name);
  if (filter == filters().end())
    throw Trouble{fmt::format("the filter {} isn't supported; {} are", brief(name), names_of(filters()))};
  return filter->second(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  spend(kUnitsOfACall);
  const auto test = tests().find(name);
  if (test == tests().end()) throw Trouble{fmt::format("the test {} isn't supported; {} are", brief(name), names_of(tests()))};
  return test->second(value, arguments);
}

}  // namespace tsprun::detail::text::jinja
