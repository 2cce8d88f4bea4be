// `--reset-attention` in commands: a file of packed documents has the loss that its documents have alone, trainings agree under
// every layout and hold what was forecast, checkpoints keep the option, and what it needs is said.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::documents_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

class PackedData : public ::testing::Test {
 protected:
  /// Writes ids below 256 as nano reads them.
  std::string write(const std::string& name, const std::vector<std::uint16_t>& ids) const {
    std::ofstream file(data_.path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(std::uint16_t)));
    return data_.path(name);
  }
  /// Returns a document of this many tokens, the last of which is 0.
  std::vector<std::uint16_t> document(std::size_t tokens) {
    std::vector<std::uint16_t> ids(tokens);
    for (std::size_t i = 0; i + 1 < tokens; ++i) ids[i] = static_cast<std::uint16_t>(1 + random_() % 255);
    return ids;
  }
  std::vector<std::uint16_t> documents(const std::vector<std::size_t>& lengths) {
    std::vector<std::uint16_t> all;
    for (const std::size_t length : lengths) {
      const std::vector<std::uint16_t> one = document(length);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  json report(Arguments arguments) {
    arguments.insert(arguments.end(), {"--audit", "strict", "--json", data_.path("report.json")});
    last_ = run_tsprun(arguments);
    EXPECT_EQ(last_.end.code, 0) << last_.describe();
    return read_json(data_.path("report.json"));
  }
  static std::string refused(const Arguments& arguments) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    return run.err;
  }

  TextData data_{10};
  std::mt19937 random_{3};
  Finished last_;
};

std::vector<double> losses_of(const json& run) {
  std::vector<double> losses;
  for (const json& step : run.at("steps")) losses.push_back(step.at("loss").get<double>());
  return losses;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12 * expected[i]) << where;
}

TEST_F(PackedData, HasTheLossOfItsDocumentsAlone) {
  std::vector<std::uint16_t> all;
  double sum = 0;
  double tokens = 0;
  for (const std::size_t length : {9U, 2U, 23U, 1U, 14U}) {
    const std::vector<std::uint16_t> one = document(length);
    all.insert(all.end(), one.begin(), one.end());
    if (length == 1) continue;  // predicts nothing
    const json alone = report({"eval", "--config", "nano", "--dtype", "f64", "--seq", "64", "--data", write("one.bin", one)});
    sum += alone.at("loss").get<double>() * alone.at("tokens").get<double>();
    tokens += alone.at("tokens").get<double>();
  }
  const std::string packed = write("packed.bin", all);
  for (const char* layout : {"tsp=1", "sp=3"}) {
    const json found = report({"eval", "--config", "nano", "--dtype", "f64", "--seq", "64", "--data", packed, "--eos", "0",
                               "--reset-attention", "--layout", layout});
    EXPECT_EQ(found.at("tokens").get<double>(), tokens) << layout;
    EXPECT_NEAR(found.at("loss").get<double>(), sum / tokens, 1e-12 * sum / tokens) << layout;
  }
  // A training's first step, whose only window is all of the file.
  const json step = report({"train", "--config", "nano", "--dtype", "f64", "--seq", std::to_string(all.size() - 1), "--steps",
                            "1", "--data", packed, "--eos", "0", "--reset-attention"});
  EXPECT_NEAR(losses_of(step)[0], sum / tokens, 1e-12 * sum / tokens);
}

TEST_F(PackedData, TrainsAlikeUnderEveryLayoutAndGoesOn) {
  const std::string packed = write("packed.bin", documents({9, 2, 23, 1, 14, 40, 3, 3, 17, 60, 1, 1, 5}));
  const Arguments common = {"train",  "--config", "nano",        "--dtype", "f64",          "--seq", "29", "--batch",
                            "4",      "--steps",  "3",           "--lr",    "0.1",          "--eos", "0",  "--reset-attention",
                            "--data", packed,     "--eval-data", packed,    "--eval-every", "2"};
  const auto train = [&](Arguments more) {
    more.insert(more.begin(), common.begin(), common.end());
    return report(more);
  };
  const json one = train({"--save", data_.path("runs"), "--save-every", "2"});
  const std::vector<double> expected = losses_of(one);
  for (const Arguments& layout :
       std::vector<Arguments>{{"--layout", "tsp=2"},
                              {"--layout", "sp=2", "--sp", "ring", "--recompute", "full"},
                              {"--layout", "tp=2", "--tp", "sequence", "--micro-batches", "2"},
                              {"--layout", "dp=2,tsp=2", "--dp", "zero3", "--recompute", "selective"}}) {
    const json found = train(layout);
    expect_near(losses_of(found), expected, layout[1]);
    EXPECT_NEAR(found.at("evaluations")[0].at("loss").get<double>(), one.at("evaluations")[0].at("loss").get<double>(), 1e-12);
  }
  std::filesystem::remove_all(data_.path("runs/step-000003"));
  const json again = report({"train", "--resume", data_.path("runs"), "--data", packed, "--steps", "3"});
  EXPECT_EQ(losses_of(again), std::vector<double>{expected.back()});
  EXPECT_EQ(last_.err.find("--reset-attention"), std::string::npos) << last_.err;
  // Without it the losses are others.
  const json crossing =
      report({"train", "--config", "nano", "--dtype", "f64", "--seq", "29", "--batch", "4", "--steps", "1", "--data", packed});
  EXPECT_GT(std::abs(losses_of(crossing)[0] - expected[0]), 1e-6);
}

TEST_F(PackedData, SaysWhatIsMissing) {
  const std::string packed = write("packed.bin", documents({5, 7}));
  const auto expect = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  const Arguments train = {"train", "--config", "nano", "--steps", "1", "--seq", "8", "--data"};
  const auto with = [&](const Arguments& more) {
    Arguments all = train;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect(refused(with({packed, "--reset-attention"})), "give --eos TOKEN");
  expect(refused(with({packed, "--eos", "0"})), "or give --reset-attention");
  expect(refused(with({packed, "--eos", "256", "--reset-attention"})), "--eos 256");
  expect(refused(with({packed, "--eos", "<end>", "--reset-attention"})), "give its id");
  expect(refused(with({data_.text(), "--eos", "0", "--reset-attention"})), "this model's ids are bytes");
  const Finished none =
      run_tsprun(with({write("endless.bin", std::vector<std::uint16_t>(20, 7)), "--eos", "0", "--reset-attention"}));
  EXPECT_EQ(none.end.code, 0) << none.describe();
  expect(none.err, "--eos 0: none of the 20 tokens of --data is 0");
  // Where every token ends a document nothing is predicted.
  const json empty =
      report({"eval", "--config", "nano", "--data", write("ends.bin", {0, 0, 0}), "--eos", "0", "--reset-attention"});
  EXPECT_EQ(empty.at("tokens"), 0);
  EXPECT_EQ(empty.at("loss"), 0);
}

}  // namespace
}  // namespace tsprun::detail::test::documents_test
