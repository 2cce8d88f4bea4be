// A model folder with a tokenizer, from one training to the next: what lies beside the weights comes along, and with it the
// refusal of text; and what a checkpoint whose config.json was edited is good for.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tsprun::detail::test::model_source_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

class ModelSourceOfRuns : public ::testing::Test {
 protected:
  ModelSourceOfRuns() {
    std::string ids;
    for (int i = 0; i < 400; ++i) ids += {static_cast<char>(i * 7 % 251), static_cast<char>(0)};
    write("ids.bin", ids);
  }
  std::string path(const std::string& name) const { return data_.path(name); }
  void write(const std::string& name, const std::string& bytes) const { std::ofstream(path(name), std::ios::binary) << bytes; }
  std::string bytes_of(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Runs a command on the ids or on text; expects that it ends with this code. Returns what it said.
  std::string run(int code, const char* data, Arguments arguments) const {
    arguments.insert(arguments.end(), {"--data", path(data)});
    if (arguments.front() == "train") arguments.insert(arguments.end(), {"--seq", "16"});
    const Finished ended = run_tsprun(arguments);
    EXPECT_EQ(ended.end.code, code) << ended.describe();
    return ended.err;
  }
  static void expect(const std::string& said, const std::string& part) { EXPECT_NE(said.find(part), std::string::npos) << said; }

 private:
  TextData data_{2000};
};

TEST_F(ModelSourceOfRuns, ComesAlongWithEveryCheckpoint) {
  run(0, "ids.bin", {"train", "--config", "nano", "--steps", "1", "--save", path("first")});
  const std::string model = "first/step-000001";
  write(model + "/tokenizer.json", "{}");
  json config = json::parse(bytes_of(model + "/config.json"));
  config["bos_token_id"] = 7;
  write(model + "/config.json", config.dump());

  // The edited file: refused in words that say what to do, and what they say works.
  expect(run(2, "ids.bin", {"eval", "--model", path(model)}), "config.json: ");
  const std::string said = run(2, "ids.bin", {"train", "--resume", path("first"), "--steps", "2"});
  expect(said, "the file was changed after it was saved, or is damaged");
  expect(said, "--model " + path(model) + " --no-checksum");

  run(0, "ids.bin",
      {"train", "--model", path(model), "--no-checksum", "--dtype", "bf16", "--steps", "1", "--save", path("second")});
  run(0, "ids.bin", {"train", "--resume", path("second"), "--steps", "2"});
  for (const char* step : {"second/step-000001", "second/step-000002"}) {
    EXPECT_EQ(bytes_of(std::string(step) + "/tokenizer.json"), "{}") << step;
    const json written = json::parse(bytes_of(std::string(step) + "/config.json"));
    EXPECT_EQ(written.at("bos_token_id"), 7) << step;
    EXPECT_EQ(written.at("torch_dtype"), "bfloat16") << step;
  }
  const std::string damaged = "second/step-000002/tokenizer.json: ";
  expect(run(2, "text.txt", {"eval", "--model", path("second")}), damaged);
  expect(run(2, "text.txt", {"train", "--resume", path("second"), "--steps", "3"}), damaged);
}

}  // namespace
}  // namespace tsprun::detail::test::model_source_test
