// The functions that every template finds: Jinja's, and those that transformers adds.
#include "layers/text/template/functions.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace tsprun::detail::text::jinja {

namespace {

constexpr std::int64_t kLongestRange = 1'000'000;

Value range(const Arguments& given) {
  std::array<std::int64_t, 3> numbers = {0, 0, 1};
  if (given.places.empty() || given.places.size() > 3 || !given.names.empty()) throw Trouble{"range takes one to three numbers"};
  for (std::size_t i = 0; i < given.places.size(); ++i) numbers[i] = given.places[i].whole("range");
  if (given.places.size() == 1) std::swap(numbers[0], numbers[1]);
  const auto [from, to, step] = numbers;
  if (step == 0) throw Trouble{"range: steps of 0"};
  List list;
  for (std::int64_t i = from; step > 0 ? i < to : i > to;) {
    if (static_cast<std::int64_t>(list.items.size()) == kLongestRange)
      throw Trouble{fmt::format("range: more than {} numbers", kLongestRange)};
    spend(2 * kUnitsOfAnItem);
    list.items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list;
}

Dict dict_of(const Arguments& given, const char* what) {
  Dict dict;
  if (given.places.size() > 1) throw Trouble{fmt::format("{} takes a dict and names", what)};
  if (!given.places.empty()) {
    const Dict* other = given.places.front().as<Dict>();
    if (other == nullptr) throw Trouble{fmt::format("{} takes a dict and names", what)};
    for (const auto& entry : other->entries) spend(kUnitsOfAText + entry.first.size());
    dict.entries = other->entries;
  }
  for (const auto& [name, value] : given.names) dict.set(name, value);
  return dict;
}

Value strftime_now(const Arguments& given, std::time_t now) {
  const auto args = bind("strftime_now", given, {"format"});
  if (args[0] == nullptr) throw Trouble{"strftime_now takes a format"};
  std::tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 1000> text{};
  std::string format = args[0]->text("strftime_now");
  if (format.find('\0') != std::string::npos) throw Trouble{"strftime_now: a format with a NUL"};
  spend(format.size());
  format += '.';  // so that 0 bytes mean that there is no room, not that there is nothing to tell
  const std::size_t bytes = std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (bytes == 0) throw Trouble{fmt::format("strftime_now: a text of more than {} bytes", text.size() - 2)};
  return std::string(text.data(), bytes - 1);
}

}  // namespace

std::vector<Function> global_functions(std::time_t now) {
  return {{"range", [](Arguments& given) { return range(given); }},
          {"dict", [](Arguments& given) -> Value { return dict_of(given, "dict"); }},
          {"namespace",
           [](Arguments& given) -> Value {
             Dict dict = dict_of(given, "namespace");
             dict.names = true;
             return dict;
           }},
          {"raise_exception",
           [](Arguments& given) -> Value {
             const auto args = bind("raise_exception", given, {"message"});
             throw Raised{args[0] == nullptr ? std::string("it says no why") : args[0]->printed().text("raise_exception")};
           }},
          {"strftime_now", [now](Arguments& given) { return strftime_now(given, now); }}};
}

}  // namespace tsprun::detail::text::jinja
