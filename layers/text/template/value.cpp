// Values, compared and printed as Python does it.
#include "layers/text/template/value.h"

#include "layers/text/characters.h"
#include "layers/text/template/texts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <utility>

namespace tsprun::detail::text::jinja {

namespace {

constexpr std::size_t kDeepest = 100;
constexpr std::size_t kAllowed = std::size_t{1} << 28;
constexpr std::size_t kMostBytesOfJson = 6;  // for a byte of a text: \u0007
constexpr std::size_t kBytesComparedPerUnit = 8;
constexpr std::size_t kLongestOfMissing = 100;  // of what is undefined, in messages
thread_local std::size_t allowed = SIZE_MAX;

/// Returns the depth of a value that holds this one.
std::size_t around(const Value& value) {
  if (const Dict* dict = value.as<Dict>(); dict != nullptr && dict->names)
    throw Trouble{"a namespace within another value isn't supported"};
  if (value.depth() >= kDeepest) throw Trouble{fmt::format("a value within more than {} others", kDeepest)};
  return value.depth() + 1;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void print_list(const List& list, std::string& to) {
  to += list.tuple ? '(' : '[';
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) to += ", ";
    list.items[i].quote(to);
  }
  if (list.tuple && list.items.size() == 1) to += ',';
  to += list.tuple ? ')' : ']';
}

void quote_text(std::string_view text, std::string& to) {
  spend(kUnitsOfAnItem + 4 * text.size());
  append_quoted(text, to);
}

void print_dict(const Dict& dict, std::string& to) {
  to += '{';
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!std::exchange(first, false)) to += ", ";
    quote_text(key, to);
    to += ": ";
    value.quote(to);
  }
  to += '}';
}

/// Returns whether two texts are the same. Spends what it takes to find out.
bool same(std::string_view one, std::string_view two) {
  if (one.size() != two.size()) return false;
  spend(one.size() / kBytesComparedPerUnit);
  return one == two;
}

/// Compares numbers as Python does: without rounding a whole one.
std::partial_ordering order_of_numbers(const Value& one, const Value& two) {
  const auto* real = two.as<double>();
  if (one.as<double>() != nullptr) {
    if (real != nullptr) return *one.as<double>() <=> *real;
    const std::partial_ordering reversed = order_of_numbers(two, one);
    if (std::is_lt(reversed)) return std::partial_ordering::greater;
    return std::is_gt(reversed) ? std::partial_ordering::less : reversed;
  }
  const std::int64_t whole = one.whole("<");
  if (real == nullptr) return whole <=> two.whole("<");
  if (std::isnan(*real)) return std::partial_ordering::unordered;
  if (*real >= 0x1p63) return std::partial_ordering::less;
  if (*real < -0x1p63) return std::partial_ordering::greater;
  const double down = std::floor(*real);
  if (const auto order = whole <=> static_cast<std::int64_t>(down); order != std::strong_ordering::equal) return order;
  return down <=> *real;
}

void write_json(const Value& value, const JsonStyle& style, std::size_t depth, std::string& to) {
  spend(kUnitsOfAnItem);
  const auto line = [&](std::size_t level) {
    if (style.indent < 0) return;
    spend(level * static_cast<std::size_t>(style.indent));
    to.append("\n").append(level * static_cast<std::size_t>(style.indent), ' ');
  };
  const std::string_view between = !style.between.empty() ? style.between : style.indent >= 0 ? "," : ", ";
  const auto all = [&](char open, char close, std::size_t count, const auto& entry) {
    to += open;
    for (std::size_t i = 0; i < count; ++i) {
      spend(between.size());
      if (i > 0) to += between;
      line(depth + 1);
      entry(i);
    }
    if (count > 0) line(depth);
    to += close;
  };
  if (value.is_none()) to += "null";
  else if (const bool* flag = value.as<bool>()) to += *flag ? "true" : "false";
  else if (const auto* whole = value.as<std::int64_t>()) to += std::to_string(*whole);
  else if (const double* number = value.as<double>()) {
    to += std::isfinite(*number) ? number_text(*number) : std::isnan(*number) ? "NaN" : *number < 0 ? "-Infinity" : "Infinity";
  } else if (const auto* text = value.as<std::string>()) {
    spend(kMostBytesOfJson * text->size());
    append_json(*text, to);
  } else if (const List* list = value.as<List>()) {
    all('[', ']', list->items.size(), [&](std::size_t i) { write_json(list->items[i], style, depth + 1, to); });
  } else if (const Dict* dict = value.as<Dict>(); dict != nullptr && !dict->names) {
    std::vector<const std::pair<std::string, Value>*> entries;
    spend(kUnitsOfAnItem * dict->entries.size());
    for (const auto& entry : dict->entries) entries.push_back(&entry);
    if (style.sorted) {
      std::ranges::sort(entries, [](const auto* one, const auto* two) {
        spend(kUnitsOfAnItem + std::min(one->first.size(), two->first.size()) / kBytesComparedPerUnit);
        return one->first < two->first;
      });
    }
    all('{', '}', entries.size(), [&](std::size_t i) {
      spend(kMostBytesOfJson * entries[i]->first.size() + style.colon.size());
      append_json(entries[i]->first, to);
      to += style.colon;
      write_json(entries[i]->second, style, depth + 1, to);
    });
  } else {
    throw Trouble{fmt::format("tojson: {} isn't a value of JSON", value.type())};
  }
}

}  // namespace

Allowance::Allowance() { allowed = kAllowed; }
Allowance::~Allowance() { allowed = SIZE_MAX; }

void spend(std::size_t units) {
  if (units > allowed) throw Trouble{"more time or memory than a template may take"};
  if (allowed != SIZE_MAX) allowed -= units;
}

const Value* Dict::find(std::string_view key) const {
  spend(4 * entries.size());
  const auto at = std::ranges::find_if(entries, [&](const auto& entry) { return same(entry.first, key); });
  return at == entries.end() ? nullptr : &at->second;
}

void Dict::set(const std::string& key, Value value) {
  spend(4 * entries.size());
  const auto at = std::ranges::find_if(entries, [&](const auto& entry) { return same(entry.first, key); });
  if (at != entries.end()) {
    at->second = std::move(value);
    return;
  }
  spend(kUnitsOfAText + key.size());
  entries.emplace_back(key, std::move(value));
}

Undefined::Undefined(std::string_view of) : name(brief(of, kLongestOfMissing)) {}

Value Value::of(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer: return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return static_cast<double>(number);
      return static_cast<std::int64_t>(number);
    }
    case nlohmann::ordered_json::value_t::number_float: return json.get<double>();
    case nlohmann::ordered_json::value_t::string: return json.get<std::string>();
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& each : json) list.items.push_back(of(each));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, each] : json.items()) dict.entries.emplace_back(key, of(each));
      return dict;
    }
    default: return {};
  }
}

Value::Value(List value) {
  for (const Value& each : value.items) value.depth = std::max(value.depth, around(each));
  held_ = std::make_shared<List>(std::move(value));
}

Value::Value(Dict value) {
  for (const auto& entry : value.entries) value.depth = std::max(value.depth, around(entry.second));
  held_ = std::make_shared<Dict>(std::move(value));
}

std::size_t Value::depth() const {
  if (const List* list = as<List>()) return list->depth;
  if (const Function* function = as<Function>()) return function->depth;
  const Dict* dict = as<Dict>();
  return dict == nullptr ? 0 : dict->depth;
}

void Value::set_name(const std::string& name, Value value) const {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&held_);
  if (dict == nullptr || !(*dict)->names)
    throw Trouble{fmt::format("a name of {} can't be set: only those of a namespace() can", type())};
  (*dict)->depth = std::max((*dict)->depth, around(value));
  (*dict)->set(name, std::move(value));
}

double Value::number() const {
  if (const auto* whole = as<std::int64_t>()) return static_cast<double>(*whole);
  if (const auto* number = as<double>()) return *number;
  return as<bool>() != nullptr && *as<bool>() ? 1 : 0;
}

std::int64_t Value::whole(std::string_view what) const {
  if (const auto* whole = as<std::int64_t>()) return *whole;
  if (const bool* flag = as<bool>()) return *flag ? 1 : 0;
  throw Trouble{is_undefined() ? fmt::format("'{}' is undefined", as<Undefined>()->name)
                               : fmt::format("{} takes a whole number, not {}", what, type())};
}

const std::string& Value::text(std::string_view what) const {
  if (const auto* text = as<std::string>()) return *text;
  throw Trouble{is_undefined() ? fmt::format("'{}' is undefined", as<Undefined>()->name)
                               : fmt::format("{} takes a text, not {}", what, type())};
}

bool Value::truth() const {
  if (const bool* flag = as<bool>()) return *flag;
  if (is_number()) return number() != 0;
  if (const auto* text = as<std::string>()) return !text->empty();
  if (const List* list = as<List>()) return !list->items.empty();
  if (const Dict* dict = as<Dict>()) return dict->names || !dict->entries.empty();
  return as<Function>() != nullptr;
}

std::string_view Value::type() const {
  if (is_none()) return "None";
  if (is_undefined()) return "Undefined";
  if (as<bool>() != nullptr) return "bool";
  if (as<std::int64_t>() != nullptr) return "int";
  if (as<double>() != nullptr) return "float";
  if (as<std::string>() != nullptr) return "str";
  if (const List* list = as<List>()) return list->tuple ? "tuple" : "list";
  if (const Dict* dict = as<Dict>()) return dict->names ? "Namespace" : "dict";
  return "function";
}

void Value::print(std::string& to) const {
  spend(kUnitsOfAnItem);
  if (is_none()) to += "None";
  else if (const bool* flag = as<bool>()) to += *flag ? "True" : "False";
  else if (const auto* whole = as<std::int64_t>()) to += std::to_string(*whole);
  else if (const double* number = as<double>()) to += number_text(*number);
  else if (const auto* text = as<std::string>()) {
    spend(text->size());
    to += *text;
  } else if (const List* list = as<List>()) {
    print_list(*list, to);
  } else if (const Dict* dict = as<Dict>(); dict != nullptr && !dict->names) {
    print_dict(*dict, to);
  } else if (!is_undefined()) {
    throw Trouble{fmt::format("a {} has no text of its own", type())};
  }
}

Value Value::printed() const {
  if (as<std::string>() != nullptr) return *this;
  spend(kUnitsOfAText);
  std::string text;
  print(text);
  return text;
}

void Value::quote(std::string& to) const {
  if (const auto* text = as<std::string>()) quote_text(*text, to);
  else if (is_undefined()) to += "Undefined";
  else print(to);
}

std::vector<Value> Value::items() const {
  if (is_undefined()) return {};
  if (const List* list = as<List>()) {
    spend(kUnitsOfAnItem * list->items.size());
    return list->items;
  }
  std::vector<Value> result;
  if (const Dict* dict = as<Dict>(); dict != nullptr && !dict->names) {
    for (const auto& entry : dict->entries) {
      spend(kUnitsOfAText + entry.first.size());
      result.emplace_back(entry.first);
    }
  } else if (const auto* text = as<std::string>()) {
    for (std::size_t at = 0; at < text->size();) {
      spend(kUnitsOfAText);
      const std::size_t bytes = character_at(*text, at).bytes;
      result.emplace_back(text->substr(at, bytes));
      at += bytes;
    }
  } else {
    throw Trouble{fmt::format("{} has no items", type())};
  }
  return result;
}

std::size_t Value::length() const {
  if (const List* list = as<List>()) return list->items.size();
  if (const auto* text = as<std::string>()) return characters_in(*text);
  if (const Dict* dict = as<Dict>(); dict != nullptr && !dict->names) return dict->entries.size();
  return items().size();
}

bool Value::operator==(const Value& other) const {
  spend(kUnitsOfAnItem);
  if (is_number() && other.is_number()) return std::is_eq(order_of_numbers(*this, other));
  if (const auto* text = as<std::string>()) return other.as<std::string>() != nullptr && same(*text, *other.as<std::string>());
  if (const List* list = as<List>()) {
    const List* others = other.as<List>();
    return others != nullptr && list->tuple == others->tuple && list->items == others->items;
  }
  if (const Dict* dict = as<Dict>(); dict != nullptr && !dict->names) {
    const Dict* others = other.as<Dict>();
    if (others == nullptr || others->names || dict->entries.size() != others->entries.size()) return false;
    return std::ranges::all_of(dict->entries, [&](const auto& entry) {
      const Value* value = others->find(entry.first);
      return value != nullptr && *value == entry.second;
    });
  }
  if (held_.index() != other.held_.index()) return false;
  return is_none() || is_undefined() || (as<Dict>() == other.as<Dict>() && as<Function>() == other.as<Function>());
}

std::partial_ordering Value::order(const Value& other) const {
  spend(kUnitsOfAnItem);
  if (is_number() && other.is_number()) return order_of_numbers(*this, other);
  if (const auto* one = as<std::string>(), *two = other.as<std::string>(); one != nullptr && two != nullptr) {
    spend(std::min(one->size(), two->size()) / kBytesComparedPerUnit);
    return *one <=> *two;  // bytes of UTF-8 have the order of their code points
  }
  if (const List* one = as<List>(), *two = other.as<List>(); one != nullptr && two != nullptr && one->tuple == two->tuple) {
    const auto [first, second] = std::ranges::mismatch(one->items, two->items);
    if (first != one->items.end() && second != two->items.end()) return first->order(*second);
    return one->items.size() <=> two->items.size();
  }
  for (const Value* each : {this, &other}) {
    if (each->is_undefined()) throw Trouble{fmt::format("'{}' is undefined", each->as<Undefined>()->name)};
  }
  throw Trouble{fmt::format("{} and {} have no order", type(), other.type())};
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string text;
  write_json(value, style, 0, text);
  return text;
}

}  // namespace tsprun::detail::text::jinja
