// `tsprun generate` from the command line: the same text under every layout, and what it refuses.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::generate_test {
namespace {

using nlohmann::json;

json report_of(const TemporaryDirectory& folder, std::vector<std::string> arguments) {
  const std::string report = folder.path("report.json");
  arguments.insert(arguments.begin(), "generate");
  arguments.insert(arguments.end(), {"--json", report});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(report);
}

json generate(const TemporaryDirectory& folder, const std::vector<std::string>& arguments) {
  return report_of(folder, arguments).at("generate");
}

Finished refused(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"generate", "--config", "nano"});
  Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  return run;
}

TEST(Generate, GreedyTextIsTheSameUnderEveryLayout) {
  const TemporaryDirectory folder;
  const std::vector<std::string> common = {"--config",         "nano",     "--dtype", "f64",           "--prompt",
                                           "Once upon a time", "--tokens", "24",      "--temperature", "0"};
  const json one = generate(folder, common);
  EXPECT_EQ(one.at("tokens").size(), 24U);
  for (const char* layout : {"tsp=2", "tsp=8", "tp=4", "sp=3", "tp=2,sp=2", "sp=2,tp=2", "tp=2,tsp=2"}) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--layout", layout});
    EXPECT_EQ(generate(folder, arguments).at("tokens"), one.at("tokens")) << layout;
  }
}

TEST(Generate, SampledTextFollowsFromTheSeed) {
  const TemporaryDirectory folder;
  const auto text = [&](const std::string& seed, const std::string& layout) {
    return generate(folder, {"--config", "nano", "--dtype", "f64", "--prompt", "A", "--tokens", "16", "--top-k", "40", "--seed",
                             seed, "--layout", layout})
        .at("tokens");
  };
  EXPECT_EQ(text("3", "tsp=1"), text("3", "tsp=4"));
  EXPECT_NE(text("3", "tsp=1"), text("4", "tsp=1"));
}

TEST(Generate, ComputesInBf16WhatIsStoredSo) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path("data.txt")) << std::string(2000, 'a') << "some text";
  for (const std::string stored : {"f32", "bf16"}) {
    const Finished saved = run_tsprun({"train", "--config", "nano", "--data", folder.path("data.txt"), "--seq", "16", "--steps",
                                       "1", "--dtype", stored, "--save", folder.path(stored)});
    ASSERT_EQ(saved.end.code, 0) << saved.describe();
    const std::vector<std::string> common = {"--model", folder.path(stored), "--prompt", "A", "--tokens",
                                             "8",       "--temperature",     "0"};
    EXPECT_EQ(report_of(folder, common).at("dtype"), stored);
    std::vector<std::string> typed = common;
    typed.insert(typed.end(), {"--dtype", "f64"});
    EXPECT_EQ(report_of(folder, typed).at("dtype"), "f64");
  }
}

TEST(Generate, BytesOfATokenDependNeitherOnThePromptNorOnTheText) {
  const TemporaryDirectory folder;
  const auto bytes = [&](const std::string& prompt, const std::string& tokens) {
    return generate(folder, {"--config", "nano", "--prompt", prompt, "--tokens", tokens, "--temperature", "0", "-n", "4"})
        .at("received_bytes_per_token");
  };
  EXPECT_EQ(bytes("A", "33"), bytes(std::string(120, 'A'), "65"));
}

/// The audit: memory to the byte on every rank, received bytes to the byte by purpose, for the prompt and for the tokens after
/// it.
TEST(Generate, AuditsWhatItHeldAndReceived) {
  const TemporaryDirectory folder;
  for (const char* layout : {"tsp=4", "tp=4", "sp=3", "tp=2,sp=2", "tp=2,tsp=2"}) {
    const json report = report_of(folder, {"--config", "nano", "--prompt", "The quick brown fox", "--tokens", "21",
                                           "--temperature", "0", "--layout", layout, "--threads", "1"});
    const json& ranks = report.at("per_rank");
    const json& theory = report.at("theory");
    for (const char* part : {"forward", "tokens"}) {
      for (const auto& [purpose, predicted] : theory.at("all_ranks").at("traffic_bytes").at(part).items()) {
        std::uint64_t sum = 0;
        for (const json& rank : ranks) sum += rank.at("traffic_bytes").at(part).at(purpose).at("received").get<std::uint64_t>();
        EXPECT_EQ(sum, predicted.at("received")) << part << " " << purpose << ", " << layout;
      }
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].at("memory_peak_bytes"), theory.at("per_rank")[rank].at("memory_peak_bytes")) << layout;
      EXPECT_GT(ranks[rank].at("seconds").at("compute").get<double>(), 0) << layout;
    }
  }
}

// Stdout is the text's: prompt, tokens, a newline.
TEST(Generate, StdoutHoldsTheTextAloneAndTheAuditGoesToStderr) {
  const TemporaryDirectory folder;
  const std::vector<std::string> arguments = {"generate", "--config", "nano", "--prompt", "A", "--tokens", "30", "-n", "2"};
  std::vector<std::string> reported = arguments;
  reported.insert(reported.end(), {"--json", folder.path("report")});
  const Finished run = run_tsprun(reported);
  std::string text = "A";
  const json report = read_json(folder.path("report"));
  for (const int token : report.at("generate").at("tokens")) text += static_cast<char>(token);
  EXPECT_EQ(run.out, text + "\n");
  EXPECT_NE(run.err.find("info: memory and traffic equal the forecast; --audit prints the figures"), std::string::npos)
      << run.describe();

  std::vector<std::string> audited = arguments;
  audited.emplace_back("--audit");
  const Finished whole = run_tsprun(audited);
  EXPECT_EQ(whole.out, text + "\n");
  for (const char* part : {"audit: memory and traffic equal the forecast", "memory, peak MiB", "received for the prompt",
                           "received for all tokens put in after it", "exposed"})
    EXPECT_NE(whole.err.find(part), std::string::npos) << part << whole.describe();
  std::vector<std::string> quiet = arguments;
  quiet.emplace_back("-q");
  EXPECT_EQ(run_tsprun(quiet).err, "");
}

// A rank that stops after the third token has shown three: they don't wait for the end.
TEST(Generate, TheTextComesTokenByToken) {
  Process process({tsprun_path(), "generate", "--config", "nano", "--prompt", "Streams: ", "--tokens", "200", "-n", "2",
                   "--timeout", "20", "--fault", "stall:rank=1,op=all_gather,seq=40,seconds=1.5"});
  EXPECT_TRUE(process.wait_for_output("Streams: ", 1, 30)) << process.err();
  // While it stands still, some tokens are there and others aren't.
  std::size_t shown = 0;
  for (int tries = 0; tries < 200 && shown < 10; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    shown = process.out().size();
  }
  EXPECT_GT(shown, 9U);
  EXPECT_LT(shown, 150U) << "the text came at once";
  EXPECT_EQ(process.wait().code, 0) << process.err();
}

TEST(Generate, TakesTokenIdsFromAFile) {
  const TemporaryDirectory folder;
  const std::string ids = folder.path("prompt.bin");
  std::ofstream(ids, std::ios::binary).write("T\0h\0e\0", 6);
  const json from_file = generate(folder, {"--config", "nano", "--prompt", ids, "--tokens", "8", "--temperature", "0"});
  const json from_text = generate(folder, {"--config", "nano", "--prompt", "The", "--tokens", "8", "--temperature", "0"});
  EXPECT_EQ(from_file.at("tokens"), from_text.at("tokens"));
}

std::string file_of(const TemporaryDirectory& folder, const std::string& text) {
  std::string file = folder.path("prompts.txt");
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

/// Greedily and by the dice, each prompt of a file gives what it gives alone, whatever the layout.
TEST(Generate, PromptsOfAFileGiveWhatEachGivesAlone) {
  const TemporaryDirectory folder;
  const std::vector<std::string> lines = {"Once upon a time", "A", "The quick brown fox jumps", "caf\xc3\xa9", "Licen", "zz"};
  std::string text;
  for (const std::string& line : lines) text += line + (line == "A" ? "\r\n" : "\n");
  text.pop_back();  // the last line needs no end
  const std::string file = file_of(folder, text);
  for (const char* temperature : {"0", "0.8"}) {
    const std::vector<std::string> common = {"--config", "nano",          "--dtype",   "f64",    "--tokens",
                                             "12",       "--temperature", temperature, "--seed", "3"};
    std::vector<json> alone;
    for (const std::string& line : lines) {
      std::vector<std::string> arguments = common;
      arguments.insert(arguments.end(), {"--prompt", line});
      json report = generate(folder, arguments);
      alone.push_back({{"text", report.at("text")},
                       {"tokens", report.at("tokens")},
                       {"prompt", report.at("prompt")},
                       {"ended_by", report.at("ended_by")}});
    }
    for (const char* layout : {"tsp=1", "tsp=2", "tp=2", "sp=3", "dp=4", "dp=2,tsp=2", "tp=2,sp=2"}) {
      std::vector<std::string> arguments = common;
      arguments.insert(arguments.end(), {"--prompts", file, "--layout", layout});
      EXPECT_EQ(generate(folder, arguments).at("texts"), json(alone)) << layout << ", " << temperature;
    }
  }
}

TEST(Generate, PromptsOfAFilePrintALineEachAndEqualTheForecast) {
  const TemporaryDirectory folder;
  const std::string file = file_of(folder, "A\nThe quick\nzz\n");
  const std::string report_file = folder.path("report");
  const Finished run = run_tsprun({"generate", "--config", "nano", "--prompts", file, "--tokens", "9", "--layout", "dp=2,tsp=2",
                                   "--threads", "1", "--json", report_file});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  std::string expected;
  const json report = read_json(report_file);
  for (const json& text : report.at("generate").at("texts"))
    expected += json(text.at("prompt").get<std::string>() + text.at("text").get<std::string>()).dump() + "\n";
  EXPECT_EQ(run.out, expected);
  EXPECT_NE(run.err.find("info: memory and traffic equal the forecast"), std::string::npos) << run.describe();
}

TEST(Generate, RefusesPromptsThatCantBe) {
  const TemporaryDirectory folder;
  const auto why = [&](const std::string& text, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--prompts", file_of(folder, text)});
    const Finished run = refused(std::move(more));
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    return run.err;
  };
  const auto expect = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  expect(why(""), "the file is empty");
  expect(why("A\n\nB\n"), "prompts.txt, line 2 is empty");
  expect(why("\n"), "prompts.txt, line 1 is empty");
  expect(why("A\n" + std::string(300, 'B')), "line 2: 300 tokens leave no room for more: the model has 256 positions");
  expect(why("A\n" + std::string(250, 'B'), {"--tokens", "64"}),
         "line 2: 250 tokens and 64 more are over the model's 256 positions; try --tokens 6");
  expect(why("A\n", {"--prompt", "B"}), "--prompt and --prompts: give one of them");
  expect(why("A\nB\n", {"--layout", "dp=3"}), "there are 2 texts");
  const Finished nowhere = refused({"--prompts", folder.path("nowhere.txt")});
  expect(nowhere.err, "nowhere.txt");
  EXPECT_EQ(std::ranges::count(nowhere.err, '\n'), 1) << nowhere.err;
}

TEST(Generate, RefusesWhatCantBe) {
  EXPECT_NE(refused({"--prompt", ""}).err.find("--prompt"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--tokens", "0"}).err.find("--tokens 0"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--tokens", "256"}).err.find("--tokens 256"), std::string::npos)
      << "nano has 256 positions";
  EXPECT_NE(refused({"--prompt", std::string(300, 'A')}).err.find("positions"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--top-p", "0"}).err.find("--top-p"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--temperature", "-1"}).err.find("--temperature"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--layout", "tsp=3"}).err.find("query heads"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--layout", "zero3=4"}).err.find("try --layout tsp=4"), std::string::npos);
  EXPECT_NE(refused({}).err.find("--prompt TEXT or --prompts FILE"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--layout", "dp=2,tp=2"}).err.find("try --layout tp=2"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--layout", "dp=2"}).err.find("try --layout tsp=2"), std::string::npos);
  EXPECT_NE(refused({"--prompt", "A", "--layout", "sp=2", "--sp", "ulysses"}).err.find("gather and ring work"),
            std::string::npos);
}

TEST(Generate, WithoutTokensAddsWhatTheModelHasRoomFor) {
  const TemporaryDirectory folder;
  const json text = generate(folder, {"--config", "nano", "--prompt", std::string(250, 'A')});
  EXPECT_EQ(text.at("tokens").size(), 6U);  // nano has 256 positions
}

}  // namespace
}  // namespace tsprun::detail::test::generate_test
