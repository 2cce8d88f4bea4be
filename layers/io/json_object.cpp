// Checks one field at a time, and words what is wrong with it.
#include "layers/io/json_object.h"

#include "transport/cause.h"
#include "transport/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tsprun::detail {

namespace {
constexpr std::size_t kMostText = 200;
}

JsonObject::JsonObject(const nlohmann::json& object, std::string where, std::string path)
    : object_(object), where_(std::move(where)), path_(std::move(path)) {
  if (object.is_object()) return;
  if (path_.empty())
    throw Error(Cause::refused, fmt::format("{}: expected a JSON object, found {}", where_, shown_value(object)));
  path_.pop_back();
  throw Error(Cause::refused,
              fmt::format("{}: field \"{}\": expected an object, found {}", where_, shown(path_), shown_value(object)));
}

const nlohmann::json* JsonObject::find(std::string_view field) {
  if (field.empty()) return nullptr;
  if (!was_asked(field)) asked_.emplace_back(field);
  const auto at = object_.find(field);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void JsonObject::refuse(std::string_view field, std::string_view expected) const {
  const auto at = object_.find(field);
  const std::string what = at == object_.end() ? fmt::format(" is missing; expected {}", expected)
                                               : fmt::format(": expected {}, found {}", expected, shown_value(*at));
  throw Error(Cause::refused, fmt::format("{}: field \"{}{}\"{}", where_, path_, field, what));
}

void JsonObject::refuse_entry(std::string_view field, std::size_t i, std::string_view expected) const {
  throw Error(Cause::refused, fmt::format("{}: field \"{}{}[{}]\": expected {}, found {}", where_, path_, field, i, expected,
                                          shown(object_.find(field)->at(i).dump())));
}

std::string JsonObject::text(std::string_view field, std::size_t least) {
  const nlohmann::json* value = find(field);
  const auto fits = [least](const std::string& text) { return text.size() >= least && text.size() <= kMostText; };
  if (value == nullptr || !value->is_string() || !fits(value->get_ref<const std::string&>()))
    refuse(field, least == 0 ? fmt::format("text of at most {} bytes", kMostText)
                             : fmt::format("text of {} to {} bytes", least, kMostText));
  return printable(value->get_ref<const std::string&>());
}

double JsonObject::number(std::string_view field, double low, double high, std::optional<double> usual) {
  return number_that([&](double value) { return value >= low && value <= high; }, field,
                     fmt::format("a number from {} to {}", low, high), usual);
}

std::uint64_t JsonObject::whole(std::string_view field, std::uint64_t low, std::uint64_t high) {
  const nlohmann::json* value = find(field);
  const bool is = value != nullptr && value->is_number_unsigned() && value->get<std::uint64_t>() >= low &&
                  value->get<std::uint64_t>() <= high;
  if (!is) refuse(field, fmt::format("an integer from {} to {}", low, high));
  return value->get<std::uint64_t>();
}

bool JsonObject::flag(std::string_view field, std::optional<bool> usual) {
  const nlohmann::json* value = find(field);
  if (value == nullptr && usual) return *usual;
  if (value == nullptr || !value->is_boolean()) refuse(field, "true or false");
  return value->get<bool>();
}

JsonObject JsonObject::inside(std::string_view field) {
  const nlohmann::json* value = find(field);
  if (value == nullptr) refuse(field, "an object");
  return {*value, where_, fmt::format("{}{}.", path_, field)};
}

std::size_t JsonObject::entries(std::string_view field, std::size_t least, std::size_t most) {
  const nlohmann::json* value = find(field);
  if (value == nullptr || !value->is_array()) refuse(field, "an array");
  if (value->size() < least || value->size() > most) refuse(field, fmt::format("an array of {} to {} entries", least, most));
  return value->size();
}

JsonObject JsonObject::entry(std::string_view field, std::size_t i) {
  return {object_.find(field)->at(i), where_, fmt::format("{}{}[{}].", path_, field, i)};
}

bool JsonObject::was_asked(std::string_view field) const { return std::ranges::find(asked_, field) != asked_.end(); }

void JsonObject::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (was_asked(key)) continue;
    throw Error(Cause::refused, fmt::format("{}: field \"{}{}\" is not known; expected {}{}", where_, path_, shown(key),
                                            fmt::join(asked_, ", "), did_you_mean(key, asked_)));
  }
}

}  // namespace tsprun::detail
