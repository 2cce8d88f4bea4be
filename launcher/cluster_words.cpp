// Turns launchers' messages into text and back, and refuses malformed ones.
#include "launcher/cluster_words.h"

#include "layers/io/digest.h"
#include "transport/bootstrap/store_link.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {
constexpr std::string_view kNo = "no ";
}

std::string Arrival::text() const {
  const nlohmann::json json = {{"nonce", nonce}, {"attempt", attempt}, {"trouble", trouble}, {"options", options}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Arrival> Arrival::parse(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    Arrival arrival{.nonce = json.at("nonce"), .attempt = json.at("attempt"), .trouble = json.at("trouble"), .options = {}};
    arrival.options = json.at("options").get<Agreement>();
    if (arrival.nonce.empty() || arrival.nonce.size() > 32) return std::nullopt;
    return arrival;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string Refusal::text() const { return fmt::format("{}{} {}", kNo, missing, why); }

Refusal Refusal::parse(std::string_view text) {
  Refusal refusal;
  if (!text.starts_with(kNo)) return {std::string(text)};
  text.remove_prefix(kNo.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), refusal.missing);
  const auto used = static_cast<std::size_t>(end - text.data());
  refusal.why = text.substr(std::min(text.size(), error == std::errc{} ? used + 1 : 0));
  return refusal;
}

Refusal begun_already() { return {"a job has begun at this rendezvous already; another one needs another port"}; }

Agreement short_enough(Agreement agreement, const char* what) {
  const std::string text = nlohmann::json(agreement).dump();
  if (text.size() <= bootstrap::kMostValueBytes / 2) return agreement;
  return {{fmt::format("{} that are too long to list", what), hexadecimal(digest(bytes_of(text)))}};
}

}  // namespace tsprun::detail::launcher
