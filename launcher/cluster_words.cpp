// Turns launchers' messages into text and back, and refuses malformed ones.
#include "launcher/cluster_words.h"

#include "layers/io/digest.h"
#include "transport/bootstrap/store_link.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::json;

std::string dump(const json& message) { return message.dump(-1, ' ', false, json::error_handler_t::replace); }

/// Reads a message that is a JSON object by `read`; nothing if the text is none, or has a field of another type.
template <class Read>
auto parse_message(const std::string& text, const Read& read) -> std::optional<decltype(read(json()))> {
  const json message = json::parse(text, nullptr, false);
  if (!message.is_object()) return std::nullopt;
  try {
    return read(message);
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

json failure_json(const Failure& failure) {
  return {{"cause", static_cast<int>(failure.cause)},
          {"rank", failure.rank},
          {"code", failure.code},
          {"op", failure.op},
          {"seq", failure.sequence},
          {"detail", failure.detail}};
}

Failure read_failure(const json& message) {
  const int cause = message.value("cause", 0);
  if (cause <= 0 || cause > 255 || !is_cause(static_cast<std::uint8_t>(cause))) return {};
  return {.cause = static_cast<Cause>(cause),
          .rank = message.value("rank", -1),
          .code = message.value("code", 0),
          .op = message.value("op", std::string()),
          .sequence = message.value("seq", 0U),
          .detail = message.value("detail", std::string())};
}

}  // namespace

std::string JoinRequest::text() const {
  return dump(json{{"nonce", nonce}, {"attempt", attempt}, {"trouble", trouble}, {"options", options}});
}

std::optional<JoinRequest> JoinRequest::parse(const std::string& text) {
  std::optional<JoinRequest> arrival = parse_message(text, [](const json& message) {
    return JoinRequest{.nonce = message.at("nonce"),
                       .attempt = message.at("attempt"),
                       .trouble = message.at("trouble"),
                       .options = message.at("options").get<Agreement>()};
  });
  if (arrival && (arrival->nonce.empty() || arrival->nonce.size() > 32)) return std::nullopt;
  return arrival;
}

std::string Ending::text() const { return dump(json{{"failure", failure_json(failure)}, {"code", code}, {"trouble", trouble}}); }

std::optional<Ending> Ending::parse(const std::string& text) {
  return parse_message(text, [](const json& message) {
    return Ending{
        .failure = read_failure(message.at("failure")), .code = message.at("code"), .trouble = message.value("trouble", "")};
  });
}

std::string Refusal::text() const { return dump(json{{"why", why}, {"missing", missing}}); }

Refusal Refusal::parse(const std::string& text) {
  return parse_message(text,
                       [](const json& message) { return Refusal{.why = message.at("why"), .missing = message.at("missing")}; })
      .value_or(Refusal{text});
}

Refusal begun_already() { return {"a job has begun at this rendezvous already; another one needs another port"}; }

Agreement short_enough(Agreement agreement, const char* what) {
  // JSON is UTF-8, and a replaced byte would be compared as it stands.
  for (auto& [name, value] : agreement) {
    if (json::parse(dump(value)) != value) value = fmt::format("bytes {}", hexadecimal(digest(bytes_of(value))));
  }
  const std::string text = dump(agreement);
  if (text.size() <= bootstrap::kMostValueBytes / 2) return agreement;
  return {{fmt::format("{} that are too long to list", what), hexadecimal(digest(bytes_of(text)))}};
}

}  // namespace tsprun::detail::launcher
