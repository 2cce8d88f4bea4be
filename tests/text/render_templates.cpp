// Renders chat templates for compare_templates.py. Reads from stdin a JSON array of {"template", "variables"}, and writes one of
// {"text"} or {"error"} to stdout. strftime_now tells 2024-07-05 12:34:56 in UTC.
#include "layers/text/template/chat_template.h"
#include "transport/cause.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <iterator>
#include <string>

int main() {
  using nlohmann::ordered_json;
  constexpr std::time_t kNow = 1720182896;
  ::setenv("TZ", "UTC", 1);
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  ordered_json answers = ordered_json::array();
  for (const ordered_json& each : ordered_json::parse(input)) {
    try {
      const auto parsed = tsprun::detail::text::ChatTemplate::parse(each.at("template").get<std::string>(), "template");
      answers.push_back({{"text", parsed.render(each.at("variables"), kNow)}});
    } catch (const tsprun::Error& error) {
      answers.push_back({{"error", error.what()}});
    }
  }
  std::cout << answers.dump() << '\n';
  return 0;
}
