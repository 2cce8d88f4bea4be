// Adds rows, and hands them to CLI11.
#include "launcher/option_table.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tsprun::detail::launcher {

std::string OptionRow::long_name() const {
  const std::size_t at = names.find("--");
  return at == std::string::npos ? std::string() : names.substr(at, names.find(',', at) - at);
}

std::vector<std::string> OptionRow::typed() const { return option->results(); }

OptionRow& OptionTable::append(const std::string& usage, std::string help, Trait traits) {
  OptionRow& row = rows_.emplace_back();
  row.names = usage.substr(0, usage.find(' '));
  if (row.names.size() < usage.size()) row.metavar = usage.substr(row.names.size() + 1);
  row.help = std::move(help);
  row.group = group_;
  row.traits = traits;
  return row;
}

OptionRow& OptionTable::add(const std::string& usage, bool& flag, std::string help, Trait traits) {
  OptionRow& row = append(usage, std::move(help), traits);
  row.declare = [&row, &flag](CLI::App& app) { return app.add_flag(row.names, flag, row.help); };
  return row;
}

OptionRow& OptionTable::add(const std::string& usage, std::string& text, std::string help, Trait traits) {
  OptionRow& row = append(usage, std::move(help), traits);
  row.usual = text;
  row.declare = [&row, &text](CLI::App& app) { return app.add_option(row.names, text, row.help)->type_name(row.metavar); };
  return row;
}

void OptionTable::add(const std::string& usage, std::string& text, std::string help, Choice<std::string> choice, Trait traits) {
  OptionRow& row = add(usage, text, with_words(std::move(help), choice.words()), traits);
  row.words = choice.words();
  row.parse = [name = row.name(), &text, choice = std::move(choice)] { choice(name, text); };
}

void OptionTable::add(const std::string& usage, std::vector<std::string>& texts, std::string help, Trait traits) {
  OptionRow& row = append(usage, std::move(help), traits);
  row.declare = [&row, &texts](CLI::App& app) {
    // Several files may stand behind one name.
    return app.add_option(row.names, texts, row.help)->type_name(row.metavar)->allow_extra_args(row.is(Trait::reads));
  };
}

std::string OptionTable::with_words(std::string help, const std::vector<std::string>& words) {
  if (const std::size_t at = help.find("{}"); at != std::string::npos && !words.empty())
    help.replace(at, 2, fmt::format("{}", fmt::join(words, ", ")));
  return help;
}

OptionRow& OptionTable::operator[](const std::string& name) {
  return *std::find_if(rows_.begin(), rows_.end(), [&](const OptionRow& row) { return row.name() == name; });
}

void OptionTable::bind(CLI::App& app) {
  for (OptionRow& row : rows_) {
    row.option = row.declare(app)->group(row.group)->required(row.is(Trait::required));
    if (!row.usual.empty()) row.option->default_str(row.usual);
  }
}

void OptionTable::parse() const {
  for (const OptionRow& row : rows_) row.parse();
}

}  // namespace tsprun::detail::launcher
