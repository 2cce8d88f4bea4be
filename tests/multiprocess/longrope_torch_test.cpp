// Longrope chooses its factors once a run, by the longest sequence that the run will see: `tsprun generate` against PyTorch's
// witness just below and above the original context, and windows of `tsprun eval` that are shorter than others.
#include "tests/oracle/torch_cases.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::longrope_torch_test {
namespace {

using nlohmann::json;

void write_ids(const std::string& file, const std::vector<std::uint32_t>& ids) {
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(ids[0])));
}

json run_python(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/usr/bin/python3");
  Process script(arguments);
  const End end = script.wait();
  EXPECT_TRUE(end.ended && end.code == 0) << "it needs Debian's packages python3 and python3-torch:\n" << script.err();
  return script.out().empty() ? json() : json::parse(script.out());
}

/// A tiny Phi-3 with an original context of 8 tokens.
struct Model {
  TemporaryDirectory directory;
  std::string folder;

  Model() {
    run_python({TSP_ORACLE_DIR "/torch_family_cases.py", "phi3:longrope:5:untied", directory.path("cases")});
    folder = directory.path("cases") + "/phi3-longrope-5";
  }
  json report_of(std::vector<std::string> arguments) const {
    const std::string report = directory.path("report.json");
    arguments.insert(arguments.end(), {"--model", folder, "--dtype", "f64", "--json", report});
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 0) << run.describe();
    return read_json(report);
  }
};

TEST(Longrope, GenerateChoosesByPromptAndTokens) {
  const Model model;
  const std::vector<std::pair<std::size_t, std::size_t>> lengths = {{4, 3}, {4, 4}, {4, 5}, {2, 8}, {7, 1}, {8, 1}, {6, 12}};
  for (const auto& [prompt, tokens] : lengths) {
    const std::string file = model.directory.path("prompt.u32");
    std::vector<std::uint32_t> ids;
    std::string text;
    for (std::size_t i = 0; i < prompt; ++i) {
      ids.push_back(static_cast<std::uint32_t>((7 * i + 3) % 23));
      text += std::to_string(ids.back()) + " ";
    }
    write_ids(file, ids);
    const json expected = run_python(
        {std::string(TSP_ORACLE_DIR) + "/families/families.py", model.folder, "--ids", text, "--greedy", std::to_string(tokens)});
    for (const char* layout : {"tsp=1", "tp=2", "tsp=2"}) {
      const json found = model.report_of({"generate", "--layout", layout, "--prompt", file, "--tokens", std::to_string(tokens),
                                          "--temperature", "0", "--ignore-eos"});
      EXPECT_EQ(found.at("generate").at("tokens"), expected.at("greedy").at(0)) << prompt << " and " << tokens << ", " << layout;
    }
  }
}

TEST(Longrope, EvalChoosesByTheLongestWindow) {
  const Model model;
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 18; ++i) ids.push_back((5 * i + 2) % 23);
  const std::string file = model.directory.path("data.u32");
  write_ids(file, ids);
  // Windows of 12 and 5 tokens, or of 8, 8 and 1.
  const auto loss = [&](const char* sequence) {
    return model.report_of({"eval", "--data", file, "--seq", sequence}).at("loss").get<double>();
  };
  const double with_long = loss("12");
  const double with_short = loss("8");
  const json config = read_json(model.folder + "/config.json");
  const auto change = [&](const char* list) {
    json changed = config;
    for (json& factor : changed.at("rope_parameters").at(list)) factor = factor.get<double>() * 1.5;
    std::ofstream(model.folder + "/config.json") << changed;
  };
  change("short_factor");
  EXPECT_EQ(loss("12"), with_long);
  EXPECT_NE(loss("8"), with_short);
  change("long_factor");
  EXPECT_NE(loss("12"), with_long);
  EXPECT_EQ(loss("8"), with_short);
}

}  // namespace
}  // namespace tsprun::detail::test::longrope_torch_test
