// Runs tsprun's own function with a command line, and keeps what it printed and reported.
#pragma once

#include "launcher/cli.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

/// Exit code, output and report of a command line.
struct Answer {
  int code = 0;
  std::string out{};
  std::string err{};
  nlohmann::json report{};  ///< discarded, if there is none
};

/// Runs `tsprun command --json FILE words…` in this process.
inline Answer answer_of(const std::string& command, std::vector<std::string> words) {
  const TemporaryFolder folder;
  const std::string file = (folder / "report.json").string();
  words.insert(words.begin(), {"tsprun", command, "--json", file});
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Answer answer;
  answer.code = launcher::tsprun(static_cast<int>(pointers.size()), pointers.data());
  answer.out = testing::internal::GetCapturedStdout();
  answer.err = testing::internal::GetCapturedStderr();
  std::ifstream stream(file);
  answer.report = nlohmann::json::parse(stream, nullptr, false);
  return answer;
}

/// Returns the row of a table in a report whose fields are these. Throws std::runtime_error if there is none.
inline const nlohmann::json& row(const nlohmann::json& rows, const std::vector<std::pair<std::string, nlohmann::json>>& fields) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const nlohmann::json& each) {
    return std::all_of(fields.begin(), fields.end(), [&](const auto& field) { return each.at(field.first) == field.second; });
  });
  if (at == rows.end()) throw std::runtime_error("no such row");
  return *at;
}

}  // namespace tsprun::detail::test
