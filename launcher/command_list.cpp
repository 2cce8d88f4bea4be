// Turns the tables of options into JSON.
#include "launcher/command_list.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

ordered_json rows_of(const OptionTable& table) {
  ordered_json rows = ordered_json::array();
  for (const OptionRow& row : table.rows()) {
    rows.push_back({{"names", row.names},
                    {"value", row.metavar},
                    {"help", row.help},
                    {"group", row.group},
                    {"default", row.usual},
                    {"required", row.is(Trait::required)},
                    {"repeats", row.option->get_expected_max() > 1},
                    {"file", row.is(Trait::reads) || row.is(Trait::writes) || row.is(Trait::writes_in_place)},
                    {"words", row.words}});
  }
  return rows;
}

}  // namespace

ordered_json command_list(const std::string& help, const OptionTable& global, const std::vector<ListedCommand>& commands) {
  ordered_json list = {{"help", help}, {"options", rows_of(global)}, {"commands", ordered_json::array()}};
  for (const auto& [facts, usage, prose, options] : commands) {
    list["commands"].push_back({{"name", facts.name},
                                {"help", facts.help},
                                {"usage", usage},
                                {"prose", prose},
                                {"examples", std::vector<std::string>(facts.examples.begin(), facts.examples.end())},
                                {"options", rows_of(options)}});
  }
  return list;
}

}  // namespace tsprun::detail::launcher
