// The report's objects of memory by category and of traffic by purpose.
#pragma once

#include "layers/theory/traffic.h"
#include "tsprun/memory.h"

#include <nlohmann/json.hpp>

#include <string>

namespace tsprun::detail::launcher {

/// Returns the peaks of the categories and of their sum, in bytes.
inline nlohmann::ordered_json memory_json(const CategoryBytes& bytes) {
  nlohmann::ordered_json json;
  for (std::size_t i = 0; i < kCategories; ++i) json[std::string(name(static_cast<Category>(i)))] = bytes.of[i];
  json["total"] = bytes.total;
  return json;
}

/// Returns an object of `of(purpose)` for each purpose.
template <class Of>
nlohmann::ordered_json by_purpose(const Of& of) {
  nlohmann::ordered_json json;
  for (int i = 0; i < kPurposes; ++i) json[std::string(name(static_cast<Purpose>(i)))] = of(static_cast<Purpose>(i));
  return json;
}

/// Returns what is received for each purpose, in bytes.
inline nlohmann::ordered_json traffic_json(const theory::PurposeBytes& received) {
  return by_purpose([&](Purpose purpose) { return nlohmann::ordered_json{{"received", received[purpose]}}; });
}

}  // namespace tsprun::detail::launcher
