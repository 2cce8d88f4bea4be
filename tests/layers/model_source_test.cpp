// What checkpoints take over from the model folder that a run began with: files beside the weights, and config.json's other
// fields.
#include "layers/checkpoints/model_source.h"

#include "layers/checkpoints/checkpoint_manifest.h"
#include "tests/layers/checkpoint_support.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace tsprun::detail::model_source_test {
namespace {

using nlohmann::json;

/// The tiny model's config.json as another program wrote it, with fields and forms that tsprun wouldn't write.
json foreign_config() {
  return json::parse(R"({"_name_or_path": "some/model", "architectures": ["LlamaForCausalLM"], "bos_token_id": 3,
    "eos_token_id": [5, 6], "dtype": "float16", "head_dim": 4, "hidden_act": "swish", "hidden_size": 12,
    "intermediate_size": 10, "max_position_embeddings": 64, "model_type": "llama", "my_own": {"a": [1, 2.5]},
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": false,
    "torch_dtype": "float16", "vocab_size": 21})");
}

void write_source(const test::TemporaryFolder& folder) {
  folder.write("config.json", foreign_config().dump());
  folder.write("tokenizer.json", "{\"model\": 1}");
  folder.write("generation_config.json", std::string("\0\xff bytes, not text", 18));
  folder.write("empty.txt", "");
}

/// Saves step 10 with what `from` has, by two ranks.
void save(const std::filesystem::path& dir, const std::filesystem::path& from, DType dtype) {
  const ModelSource source = read_model_source(from);
  const auto outcomes = test::try_ranks(2, [&](Context& context) {
    Rank rank(context);
    const ModelConfig config = test::checkpoint_config();
    ParameterStore store(rank, dtype, test::checkpoint_plan(config, 2, rank.rank()), true);
    test::fill_elements(store, 1);
    save_checkpoint(rank, rank.world(), store, config, test::checkpoint_state(10, dtype), dir, {.source = &source});
  });
  for (const test::RankOutcome& outcome : outcomes) ASSERT_FALSE(outcome.failed) << test::describe(outcomes);
}

TEST(ModelSource, IsWhatLiesBesideTheWeightsInTheFolderItself) {
  const test::TemporaryFolder folder;
  write_source(folder);
  for (const char* weights : {"model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "optimizer.pt",
                              "rng_state.pth", "model.gguf", "trainer_state.json", "manifest.json", ".hidden"})
    folder.write(weights, "x");
  std::filesystem::create_directory(folder / "original");
  folder.write("original/params.json", "{}");
  folder.write("blob", "linked");
  std::filesystem::create_symlink("blob", folder / "tokenizer.model");
  folder.write("broken\nname", "");
  folder.write("not utf-8 \xff", "");
  const ModelSource source = read_model_source(folder.path());
  std::map<std::string, std::string> files;
  for (const CarriedFile& file : source.files) files[file.name] = file.bytes;
  EXPECT_EQ(files, (std::map<std::string, std::string>{{"tokenizer.json", "{\"model\": 1}"},
                                                       {"generation_config.json", std::string("\0\xff bytes, not text", 18)},
                                                       {"empty.txt", ""},
                                                       {"blob", "linked"},
                                                       {"tokenizer.model", "linked"}}));
  ASSERT_EQ(source.warnings.size(), 2U);
  for (const std::string& line : source.warnings) {
    EXPECT_NE(line.find("its name isn't plain text"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
  EXPECT_EQ(source.config, foreign_config().dump());
  // Of a config.json alone only its fields.
  EXPECT_TRUE(read_model_source(folder / "config.json").files.empty());
  EXPECT_EQ(read_model_source(folder / "config.json").config, source.config);
  EXPECT_REFUSED(read_model_source(folder / "original"), "config.json", "No such file");
}

TEST(ModelSource, IsInEveryCheckpointThatFollows) {
  const test::TemporaryFolder folder;
  write_source(folder);
  save(folder / "first", folder.path(), DType::bf16);
  save(folder / "second", folder / "first/step-000010", DType::f32);
  json expected = foreign_config();
  expected["dtype"] = expected["torch_dtype"] = "float32";
  const std::string step = "second/step-000010/";
  EXPECT_EQ(json::parse(test::read_all(folder / (step + "config.json"))), expected);
  for (const char* file : {"tokenizer.json", "generation_config.json", "empty.txt"})
    EXPECT_EQ(test::read_all(folder / (step + file)), test::read_all(folder / file)) << file;
  EXPECT_TRUE(read_config(folder / (step + "config.json")).config.same_model(test::checkpoint_config()));
  const FoundCheckpoint found = open_checkpoint(folder / "second/step-000010", true);
  EXPECT_TRUE(found.warnings.empty());
  EXPECT_EQ(test::load_and_count_wrong(found, 2, 1), 0U);
  const Manifest manifest = read_manifest(folder / "second/step-000010");
  ASSERT_EQ(manifest.files.size(), 4U + 3);
  EXPECT_EQ(manifest.files[4].name, "empty.txt");
  EXPECT_EQ(manifest.files[6].bytes, 12U);
}

TEST(ModelSource, ThatWasChangedInACheckpointIsWarnedOfAndCarriedAsItIs) {
  const test::TemporaryFolder folder;
  write_source(folder);
  save(folder.path(), folder.path(), DType::f32);
  folder.write("step-000010/tokenizer.json", "{\"model\": 2}");
  std::filesystem::remove(folder / "step-000010/empty.txt");
  const FoundCheckpoint found = open_checkpoint(folder / "step-000010", true);
  ASSERT_EQ(found.warnings.size(), 2U);
  EXPECT_NE(found.warnings[0].find("empty.txt: is missing"), std::string::npos) << found.warnings[0];
  EXPECT_NE(found.warnings[1].find("tokenizer.json: isn't as it was saved"), std::string::npos) << found.warnings[1];
  const ModelSource next = read_model_source(found.folder);
  ASSERT_EQ(next.files.size(), 2U);
  EXPECT_EQ(next.files[1].bytes, "{\"model\": 2}");
}

TEST(ModelSource, IsNamedInAManifestOnlyByPlainNamesOnce) {
  for (const char* name : {"a.txt", "tokenizer.json", "Ünïcode.model", "a b"}) EXPECT_TRUE(may_be_carried(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "../a", "/etc/passwd", ".hidden", "a\nb", "config.json", "manifest.json",
                           "optimizer.m.safetensors", "x.partial"})
    EXPECT_FALSE(may_be_carried(name)) << name;
  Manifest manifest;
  manifest.state = test::checkpoint_state(10);
  for (const std::string& name : checkpoint_files(DType::f32)) manifest.files.push_back({name, 1, std::string(32, 'a')});
  manifest.files.push_back({"tokenizer.json", 1, std::string(32, 'a')});
  EXPECT_EQ(parse_manifest(manifest_json(manifest), "m").files, manifest.files);
  for (const char* name : {"../tokenizer.json", "tokenizer.json", "config.json", "model.safetensors"}) {
    Manifest lying = manifest;
    lying.files.push_back({name, 1, std::string(32, 'a')});
    EXPECT_REFUSED(parse_manifest(manifest_json(lying), "m"), "files[5].name", "the name of another file");
  }
}

TEST(ModelSource, DoesntHideThatTheHeadWasAdded) {
  json headless = foreign_config();
  headless["architectures"] = json::array({"LlamaModel"});
  const json written = json::parse(hugging_face_json(test::checkpoint_config(), "bfloat16", headless.dump()));
  EXPECT_EQ(written.at("architectures"), json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(written.at("bos_token_id"), 3);
  // What the source leaves to its program's defaults is written out.
  headless.erase("rms_norm_eps");
  headless["num_key_value_heads"] = nullptr;
  const json whole = json::parse(hugging_face_json(test::checkpoint_config(), "bfloat16", headless.dump()));
  EXPECT_EQ(whole.at("rms_norm_eps"), 1e-6);
  EXPECT_EQ(whole.at("num_key_value_heads"), 2);
  EXPECT_FALSE(whole.contains("rope_theta"));  // it stands in rope_parameters
}

}  // namespace
}  // namespace tsprun::detail::model_source_test
