// What templates may call: methods of values, filters, tests, operators, functions. Names and meanings are Python's and Jinja's;
// what isn't here is refused by name.
#pragma once

#include "layers/text/template/value.h"

#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::jinja {

/// Returns the arguments in the order of the parameters, null for those that aren't given. Throws Trouble for others.
std::vector<const Value*> bind(std::string_view what, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters);

/// Returns a method of a text, list or dictionary; nothing if it has none of this name. Throws Trouble for a method that Python
/// has and templates don't.
std::optional<Value> method(const Value& of, std::string_view name);

/// Returns a text as Jinja's filter `title` gives it, which isn't Python's title(): words begin behind blanks, "-", "(", "{", "["
/// and "<". Throws Trouble.
std::string titled(std::string_view text);

/// Applies a filter to a value. Throws Trouble.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
/// Returns whether a test holds for a value. Throws Trouble.
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);

/// Returns value.name and value[key]; Undefined if it isn't there. Throws Trouble for members of what is undefined.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);
/// Returns value[first:last:step] as Python does; parts that are None aren't given. Throws Trouble.
Value slice_of(const Value& value, const Value& first, const Value& last, const Value& step);
/// Returns whether an item is in a list, a key in a dictionary, or a text in a text. Throws Trouble.
bool contains(const Value& in, const Value& item);
/// Returns one + two for numbers, texts and lists. Throws Trouble.
Value sum_of(const Value& one, const Value& two);
/// Returns one `sign` two for -, *, /, // and % of numbers, and a text times a number. Throws Trouble.
Value arithmetic(const std::string& sign, const Value& one, const Value& two);

/// Refusal by a template itself, by raise_exception().
struct Raised {
  std::string what;
};
/// Returns the functions that every template finds. `now`: what strftime_now() tells.
std::vector<Function> global_functions(std::time_t now);

}  // namespace tsprun::detail::text::jinja
