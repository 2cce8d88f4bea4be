// Members of values: methods, attributes, items, slices.
#include "layers/text/characters.h"
#include "layers/text/template/functions.h"
#include "layers/text/template/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tsprun::detail::text::jinja {

namespace {

using Texts = std::vector<std::string_view>;

constexpr std::size_t kUnitsOfAPart = 64;  // of a text that is cut: a view, which vectors hold twice while they grow

constexpr std::array<std::string_view, 16> kOfTexts = {"strip",      "lstrip",   "rstrip",     "split", "rsplit", "splitlines",
                                                       "startswith", "endswith", "replace",    "find",  "count",  "upper",
                                                       "lower",      "title",    "capitalize", "join"};
/// Methods of Python's texts that templates don't have.
constexpr std::array<std::string_view, 32> kNotOfTexts = {
    "casefold", "center",  "encode",    "expandtabs", "format",    "format_map",   "index",        "isalnum",
    "isalpha",  "isascii", "isdecimal", "isdigit",    "islower",   "isidentifier", "isnumeric",    "isprintable",
    "isspace",  "istitle", "isupper",   "ljust",      "maketrans", "partition",    "removeprefix", "removesuffix",
    "rfind",    "rindex",  "rjust",     "rpartition", "swapcase",  "translate",    "zfill",        "__class__"};
/// Methods that would change a value, which transformers' sandbox forbids, too.
constexpr std::array<std::string_view, 10> kChanging = {"append", "extend", "insert", "pop",     "remove",
                                                        "clear",  "sort",   "update", "reverse", "setdefault"};

List list_of(const Texts& texts) {
  List list;
  for (const std::string_view each : texts) {
    spend(kUnitsOfAText + each.size());
    list.items.emplace_back(std::string(each));
  }
  return list;
}

/// Returns the words between blanks; behind the first `most` splits is the rest.
Texts words_of(std::string_view text, std::int64_t most) {
  Texts words;
  spend(text.size());
  text = strip(text, nullptr, true, false);
  while (!text.empty()) {
    spend(kUnitsOfAPart);
    std::size_t end = 0;
    while (end < text.size() && !is_blank(character_at(text, end).code)) end += character_at(text, end).bytes;
    if (most >= 0 && words.size() == static_cast<std::size_t>(most)) {
      words.push_back(strip(text, nullptr, false, true));
      break;
    }
    words.push_back(text.substr(0, end));
    text = strip(text.substr(end), nullptr, true, false);
  }
  return words;
}

Texts split(std::string_view text, std::string_view at, std::int64_t most, bool from_right) {
  if (at.empty()) throw Trouble{"split: an empty separator"};
  Texts parts;
  spend(text.size() / 8);
  if (from_right) spend(text.size() * at.size() / 32);  // what rfind() may take
  while (most < 0 || parts.size() < static_cast<std::size_t>(most)) {
    const std::size_t found = from_right ? text.rfind(at) : find_in(text, at);
    if (found == std::string_view::npos) break;
    spend(kUnitsOfAPart);
    parts.push_back(from_right ? text.substr(found + at.size()) : text.substr(0, found));
    text = from_right ? text.substr(0, found) : text.substr(found + at.size());
  }
  parts.push_back(text);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

Texts lines(std::string_view text) {
  Texts result;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character each = character_at(text, at);
    const char32_t code = each.code;
    const bool ends =
        (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 || code == 0x2029;
    const std::size_t next = at + each.bytes + (code == '\r' && text.substr(at + 1).starts_with('\n') ? 1 : 0);
    if (ends) {
      spend(kUnitsOfAPart);
      result.push_back(text.substr(begin, at - begin));
      begin = next;
    }
    at = ends ? next : at + each.bytes;
  }
  if (begin < text.size()) result.push_back(text.substr(begin));
  return result;
}

std::string replaced(std::string_view text, std::string_view old, std::string_view with, std::int64_t most) {
  std::string result;
  if (old.empty()) throw Trouble{"replace: an empty text to look for isn't supported"};
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    const std::size_t found = find_in(text, old);
    if (found == std::string_view::npos) break;
    spend(found + with.size() + kUnitsOfAPart);
    result.append(text.substr(0, found)).append(with);
    text.remove_prefix(found + old.size());
  }
  spend(text.size());
  return result.append(text);
}

std::string in_case(std::string_view text, bool upper) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const Character each = character_at(text, at);
    if (each.code < 0x80) {
      const char c = static_cast<char>(each.code);
      if (upper) result += c >= 'a' && c <= 'z' ? static_cast<char>(c - 0x20) : c;
      else result += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 0x20) : c;
    } else if (upper) {
      if (is_cased(each.code)) throw Trouble{"upper case of letters beyond ASCII isn't supported"};
      result += text.substr(at, each.bytes);
    } else {
      append_lower(result, each.code);
    }
    at += each.bytes;
  }
  return result;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t first = character_at(text, 0).bytes;
  return in_case(text.substr(0, first), true) + in_case(text.substr(first), false);
}

std::string title(std::string_view text) {
  std::string result;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text, at);
    const bool letter = is_cased(code);
    result += in_case(text.substr(at, bytes), letter && !inside);
    inside = letter;
    at += bytes;
  }
  return result;
}

/// Returns the number of characters before byte `at`.
std::int64_t place_of(std::string_view text, std::size_t at) {
  return at == std::string_view::npos ? -1 : static_cast<std::int64_t>(characters_in(text.substr(0, at)));
}

bool any_of(const Value& which, const std::string& what, const auto& is) {
  const List* several = which.as<List>();
  if (several == nullptr) return is(which.text(what));
  return std::ranges::any_of(several->items, [&](const Value& each) { return is(each.text(what)); });
}

Value text_method(const std::string& text, const std::string& name, const Arguments& given) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const auto args = bind(name, given, {"chars"});
    const std::string* which = args[0] == nullptr || args[0]->is_none() ? nullptr : &args[0]->text(name);
    const std::string_view inner = strip(text, which, name != "rstrip", name != "lstrip");
    spend(inner.size());
    return std::string(inner);
  }
  if (name == "split" || name == "rsplit") {
    const auto args = bind(name, given, {"sep", "maxsplit"});
    const std::int64_t most = args[1] == nullptr ? -1 : args[1]->whole(name);
    if (args[0] != nullptr && !args[0]->is_none()) return list_of(split(text, args[0]->text(name), most, name == "rsplit"));
    if (name == "rsplit" && most >= 0) throw Trouble{"rsplit: a number of splits at blanks isn't supported"};
    return list_of(words_of(text, most));
  }
  if (name == "startswith" || name == "endswith") {
    const auto args = bind(name, given, {"prefix"});
    if (args[0] == nullptr) throw Trouble{name + " takes a text"};
    return any_of(*args[0], name,
                  [&](const std::string& each) { return name == "startswith" ? text.starts_with(each) : text.ends_with(each); });
  }
  if (name == "replace") {
    const auto args = bind(name, given, {"old", "new", "count"});
    if (args[0] == nullptr || args[1] == nullptr) throw Trouble{"replace takes two texts"};
    return replaced(text, args[0]->text(name), args[1]->text(name), args[2] == nullptr ? -1 : args[2]->whole(name));
  }
  if (name == "find" || name == "count") {
    const auto args = bind(name, given, {"sub"});
    if (args[0] == nullptr) throw Trouble{name + " takes a text"};
    const std::string& part = args[0]->text(name);
    if (name == "find") return place_of(text, place_in(text, part));
    if (part.empty()) return static_cast<std::int64_t>(characters_in(text) + 1);
    return static_cast<std::int64_t>(split(text, part, -1, false).size() - 1);
  }
  if (name == "join") {
    const auto args = bind(name, given, {"iterable"});
    if (args[0] == nullptr) throw Trouble{"join takes a list"};
    std::string all;
    bool first = true;
    for (const Value& each : args[0]->items()) {
      spend(text.size() + each.text("join").size());
      if (!first) all += text;
      all += each.text("join");
      first = false;
    }
    return all;
  }
  bind(name, given, {});
  spend(2 * text.size());
  if (name == "splitlines") return list_of(lines(text));
  if (name == "upper" || name == "lower") return in_case(text, name == "upper");
  return name == "title" ? title(text) : capitalized(text);
}

Value dict_method(const Dict& dict, const std::string& name, const Arguments& given) {
  if (name == "get") {
    const auto args = bind(name, given, {"key", "default"});
    if (args[0] == nullptr) throw Trouble{"get takes a key"};
    const auto* key = args[0]->as<std::string>();
    const Value* found = key == nullptr ? nullptr : dict.find(*key);
    return found != nullptr ? *found : args[1] != nullptr ? *args[1] : Value();
  }
  bind(name, given, {});
  List list;
  for (const auto& [key, value] : dict.entries) {
    spend(4 * kUnitsOfAPart + (name == "values" ? 0 : key.size()));
    if (name == "keys") list.items.emplace_back(key);
    else if (name == "values") list.items.push_back(value);
    else list.items.emplace_back(List{.items = {Value(key), value}, .tuple = true});
  }
  return list;
}

std::int64_t clamped(const Value& value, std::int64_t low, std::int64_t high, std::int64_t size) {
  std::int64_t at = value.whole("a slice");
  if (at < 0) at += size;
  return std::clamp(at, low, high);
}

/// Returns some characters of a text: `steps`, the first at `from`, one every `by`.
Value characters_by(std::string_view text, std::int64_t from, std::int64_t by, std::int64_t steps) {
  if (steps == 0) return "";
  if (by == 1) {
    text.remove_prefix(place_of_character(text, static_cast<std::size_t>(from)));
    return std::string(text.substr(0, place_of_character(text, static_cast<std::size_t>(steps))));
  }
  const Texts characters = characters_of(text);
  std::string chosen;
  for (std::int64_t i = 0; i < steps; ++i) chosen += characters[static_cast<std::size_t>(from + i * by)];
  return chosen;
}

}  // namespace

std::string titled(std::string_view text) {
  constexpr std::string_view kBefore = "-({[<";
  std::string result;
  spend(4 * text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    const auto begins = [&] {
      return is_blank(character_at(text, end).code) || kBefore.find(text[end]) != std::string_view::npos;
    };
    while (end < text.size() && begins()) end += character_at(text, end).bytes;
    result += text.substr(at, end - at);
    at = end;
    while (end < text.size() && !begins()) end += character_at(text, end).bytes;
    result += capitalized(text.substr(at, end - at));
    at = end;
  }
  return result;
}

std::vector<const Value*> bind(std::string_view what, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters) {
  std::vector<const Value*> bound(parameters.size());
  if (arguments.places.size() > parameters.size())
    throw Trouble{fmt::format("{} takes at most {} arguments here, not {}", what, parameters.size(), arguments.places.size())};
  for (std::size_t i = 0; i < arguments.places.size(); ++i) bound[i] = &arguments.places[i];
  for (const auto& [name, value] : arguments.names) {
    const auto* const at = std::ranges::find(parameters, std::string_view(name));
    if (at == parameters.end() || bound[static_cast<std::size_t>(at - parameters.begin())] != nullptr)
      throw Trouble{fmt::format("{} takes no argument {} here", what, brief(name))};
    bound[static_cast<std::size_t>(at - parameters.begin())] = &value;
  }
  return bound;
}

std::optional<Value> method(const Value& of, std::string_view name) {
  const bool listed = of.as<List>() != nullptr || of.as<Dict>() != nullptr;
  if (listed && std::ranges::find(kChanging, name) != kChanging.end() &&
      (of.as<Dict>() == nullptr || of.as<Dict>()->find(name) == nullptr))
    throw Trouble{fmt::format("{}() would change a {}, which templates may not", name, of.type())};
  const std::string known(name);
  if (of.as<std::string>() != nullptr && std::ranges::find(kOfTexts, name) != kOfTexts.end())
    return Function{known, [of, known](Arguments& given) { return text_method(*of.as<std::string>(), known, given); }};
  const Dict* dict = of.as<Dict>();
  if (dict != nullptr && !dict->names && (name == "items" || name == "keys" || name == "values" || name == "get"))
    return Function{known, [of, known](Arguments& given) { return dict_method(*of.as<Dict>(), known, given); }, of.depth() + 1};
  return {};
}

Value attribute_of(const Value& value, const std::string& name) {
  if (value.is_undefined()) throw Trouble{fmt::format("'{}' is undefined", value.as<Undefined>()->name)};
  if (const Dict* dict = value.as<Dict>(); dict != nullptr && dict->names) {
    const Value* found = dict->find(name);
    return found != nullptr ? *found : Value(Undefined(name));
  }
  if (const std::optional<Value> found = method(value, name)) return *found;
  if (const Dict* dict = value.as<Dict>()) {
    if (const Value* found = dict->find(name)) return *found;
  } else if (value.as<std::string>() != nullptr && std::ranges::find(kNotOfTexts, name) != kNotOfTexts.end()) {
    throw Trouble{fmt::format("the method {} of a text isn't supported", name)};
  }
  return Undefined(name);
}

Value item_of(const Value& value, const Value& key) {
  if (value.is_undefined()) throw Trouble{fmt::format("'{}' is undefined", value.as<Undefined>()->name)};
  if (const auto* name = key.as<std::string>()) {
    const Dict* dict = value.as<Dict>();
    if (dict == nullptr) return value.as<std::string>() != nullptr ? Value(Undefined(*name)) : attribute_of(value, *name);
    const Value* found = dict->find(*name);
    return found != nullptr ? *found : attribute_of(value, *name);
  }
  if (value.as<Dict>() != nullptr || !(value.as<List>() != nullptr || value.as<std::string>() != nullptr))
    return Undefined(key.is_undefined() ? key.as<Undefined>()->name : key.printed().text("an index"));
  std::int64_t at = key.whole("an index");
  const auto size = static_cast<std::int64_t>(value.length());
  if (at < 0) at += size;
  if (at < 0 || at >= size) return Undefined(fmt::format("item {}", key.whole("an index")));
  if (const List* list = value.as<List>()) return list->items[static_cast<std::size_t>(at)];
  const std::string& text = *value.as<std::string>();
  const std::size_t begin = place_of_character(text, static_cast<std::size_t>(at));
  return text.substr(begin, character_at(text, begin).bytes);
}

Value slice_of(const Value& value, const Value& first, const Value& last, const Value& step) {
  if (value.is_undefined()) throw Trouble{fmt::format("'{}' is undefined", value.as<Undefined>()->name)};
  const bool text = value.as<std::string>() != nullptr;
  if (!text && value.as<List>() == nullptr) throw Trouble{fmt::format("{} can't be sliced", value.type())};
  const auto size = static_cast<std::int64_t>(value.length());
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;  // longer than any text or list
  const std::int64_t by = std::clamp(step.is_none() ? 1 : step.whole("a slice"), -kLargest, kLargest);
  if (by == 0) throw Trouble{"a slice by steps of 0"};
  const std::int64_t low = by > 0 ? 0 : -1;
  const std::int64_t high = by > 0 ? size : size - 1;
  const std::int64_t from = first.is_none() ? (by > 0 ? low : high) : clamped(first, low, high, size);
  const std::int64_t to = last.is_none() ? (by > 0 ? high : low) : clamped(last, low, high, size);
  const std::int64_t steps = std::max<std::int64_t>(by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by, 0);
  if (text) return characters_by(*value.as<std::string>(), from, by, steps);
  List list{.items = {}, .tuple = value.as<List>()->tuple};
  spend(kUnitsOfAnItem * static_cast<std::size_t>(steps));
  for (std::int64_t i = 0; i < steps; ++i) list.items.push_back(value.as<List>()->items[static_cast<std::size_t>(from + i * by)]);
  return list;
}

bool contains(const Value& in, const Value& item) {
  if (const auto* text = in.as<std::string>()) return place_in(*text, item.text("in")) != std::string::npos;
  if (const Dict* dict = in.as<Dict>(); dict != nullptr && !dict->names)
    return item.as<std::string>() != nullptr && dict->find(*item.as<std::string>()) != nullptr;
  if (const List* list = in.as<List>()) return std::ranges::find(list->items, item) != list->items.end();
  return !in.items().empty();  // which is none, or refused
}

Value sum_of(const Value& one, const Value& two) {
  if (one.as<std::string>() != nullptr && two.as<std::string>() != nullptr) {
    spend(one.as<std::string>()->size() + two.as<std::string>()->size());
    return *one.as<std::string>() + *two.as<std::string>();
  }
  if (one.is_number() && two.is_number()) {
    if (one.as<double>() != nullptr || two.as<double>() != nullptr) return one.number() + two.number();
    std::int64_t sum = 0;
    if (__builtin_add_overflow(one.whole("+"), two.whole("+"), &sum)) throw Trouble{"too large a number"};
    return sum;
  }
  if (one.as<List>() != nullptr && two.as<List>() != nullptr && one.as<List>()->tuple == two.as<List>()->tuple) {
    spend(2 * kUnitsOfAnItem * (one.as<List>()->items.size() + two.as<List>()->items.size()));
    List both = *one.as<List>();
    both.items.insert(both.items.end(), two.as<List>()->items.begin(), two.as<List>()->items.end());
    return both;
  }
  for (const Value* each : {&one, &two}) {
    if (each->is_undefined()) throw Trouble{fmt::format("'{}' is undefined", each->as<Undefined>()->name)};
  }
  throw Trouble{fmt::format("{} and {} can't be added", one.type(), two.type())};
}

}  // namespace tsprun::detail::text::jinja
