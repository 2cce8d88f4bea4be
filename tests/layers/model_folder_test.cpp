// Model folders: one file or shards, and what an index can get wrong.
#include "layers/parameters/model_folder.h"
#include "layers/io/safetensors_writer.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::model_folder_test {
namespace {

ModelConfig tiny() {
  ModelConfig config = find_config("nano").config;
  config.layers = 1;
  return config;
}

/// Writes parameters [first, end) of the model, every element its index in the tensor plus 1000 × the parameter's number.
void write_shard(const std::filesystem::path& path, const std::vector<Parameter>& parameters, std::size_t first, std::size_t end,
                 bool tied = false) {
  std::vector<safetensors::PlannedTensor> planned;
  for (std::size_t i = first; i < end; ++i) planned.push_back({parameters[i].name, DType::f32, parameters[i].shape});
  const safetensors::Plan plan(planned);
  safetensors::Writer writer = safetensors::Writer::create(path, plan);
  for (std::size_t i = first; i < end; ++i) {
    std::vector<float> values(parameters[i].elements());
    const std::size_t like = tied && parameters[i].role == ParameterRole::head ? 0 : i;
    for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(1000 * like + j);
    writer.write(parameters[i].name, std::span(values));
  }
  writer.publish();
}

std::string index_of(const std::vector<Parameter>& parameters, std::size_t cut) {
  std::string text = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    text += (i == 0 ? "\"" : ",\"") + parameters[i].name + "\":\"" + (i < cut ? "one" : "two") + ".safetensors\"";
  }
  return text + "}}";
}

void expect_all(const ModelFolder& weights, const std::vector<Parameter>& parameters) {
  EXPECT_TRUE(weights.check(parameters).empty());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<double> values(parameters[i].elements());
    weights.read(parameters[i].name, {0, parameters[i].rows(), 0, parameters[i].columns()}, std::span(values));
    for (std::size_t j = 0; j < values.size(); ++j) ASSERT_EQ(values[j], static_cast<double>(1000 * i + j)) << parameters[i].name;
  }
}

TEST(ModelFolder, AreReadFromOneFileOrShards) {
  const test::TemporaryFolder folder;
  const std::vector<Parameter> parameters = model_parameters(tiny());
  write_shard(folder / "one.safetensors", parameters, 0, 5);
  write_shard(folder / "two.safetensors", parameters, 5, parameters.size());
  folder.write("model.safetensors.index.json", index_of(parameters, 5));
  const ModelFolder sharded(folder.path());
  expect_all(sharded, parameters);
  std::vector<float> rows(2 * 64);
  sharded.read(parameters[2].name, {3, 2, 0, 64}, std::span(rows));
  EXPECT_EQ(rows.front(), 2000.0F + 3 * 64);

  write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
  expect_all(ModelFolder(folder.path()), parameters);
  expect_all(ModelFolder(folder / "model.safetensors"), parameters);
}

TEST(ModelFolder, NameWhatTheIndexLeavesOut) {
  const test::TemporaryFolder folder;
  std::vector<Parameter> parameters = model_parameters(tiny());
  const std::size_t own = parameters.size();
  parameters.push_back(parameters.back());
  parameters.back().name = "model.layers.0.self_attn.q_proj.bias";
  write_shard(folder / "one.safetensors", parameters, 0, 5);
  write_shard(folder / "two.safetensors", parameters, 5, parameters.size());
  parameters.resize(own);
  folder.write("model.safetensors.index.json", index_of(parameters, 5));
  EXPECT_REFUSED(ModelFolder(folder.path()).check(parameters), "two.safetensors", "q_proj.bias", "biases aren't supported");
}

TEST(ModelFolder, NameTensorsOfImagesUnlessTheModelSeesThem) {
  const test::TemporaryFolder folder;
  std::vector<Parameter> parameters = model_parameters(tiny());
  const std::size_t own = parameters.size();
  parameters.push_back(parameters.back());
  parameters.back().name = "vision_tower.embeddings.weight";
  write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
  parameters.resize(own);
  const ModelFolder weights(folder.path());
  EXPECT_NE(weights.check(parameters).find("vision_tower.embeddings.weight"), std::string::npos);
  EXPECT_EQ(weights.check(parameters, true), "");
}

TEST(ModelFolder, RefuseAnIndexThatLies) {
  const test::TemporaryFolder folder;
  const std::vector<Parameter> parameters = model_parameters(tiny());
  EXPECT_REFUSED(ModelFolder(folder.path()), "model.safetensors", "model.safetensors.index.json");
  EXPECT_REFUSED(ModelFolder(folder / "none"), "none");
  write_shard(folder / "one.safetensors", parameters, 0, 5);
  const std::string index = "model.safetensors.index.json";
  folder.write(index, index_of(parameters, 5));
  EXPECT_REFUSED(ModelFolder(folder.path()), "two.safetensors", "is missing", index);
  write_shard(folder / "two.safetensors", parameters, 5, parameters.size());
  folder.write(index, index_of(parameters, 6));
  EXPECT_REFUSED(ModelFolder(folder.path()), "one.safetensors", parameters[5].name, "is missing", index);
  for (const char* shard : {"\"../one.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "\"a/b\"", "3", "null"}) {
    folder.write(index, std::string(R"({"weight_map":{"w":)") + shard + "}}");
    EXPECT_REFUSED(ModelFolder(folder.path()), index, "weight_map.w", "name of a file");
  }
  for (const char* text : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})"}) {
    folder.write(index, text);
    EXPECT_REFUSED(ModelFolder(folder.path()), index, "weight_map");
  }
  folder.write(index, R"({"weight_map":{"w":"one.safetensors","w":"two.safetensors"}})");
  EXPECT_REFUSED(ModelFolder(folder.path()), index, "weight_map.w", "twice");
}

TEST(ModelFolder, AreHeldAgainstTheModel) {
  const test::TemporaryFolder folder;
  std::vector<Parameter> parameters = model_parameters(tiny());
  write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
  const ModelFolder weights(folder.path());

  std::vector<Parameter> other = parameters;
  other[3].shape = {parameters[3].shape[0] + 8, parameters[3].shape[1]};
  EXPECT_REFUSED(weights.check(other), parameters[3].name, "shape", "expected [40, 64], found [32, 64]");
  ModelConfig deeper = tiny();
  deeper.layers = 2;
  EXPECT_REFUSED(weights.check(model_parameters(deeper)), "model.layers.1", "is missing");

  // A tied model's head is the embedding: another one is refused.
  ModelConfig tied = tiny();
  tied.tied_embeddings = true;
  EXPECT_REFUSED(weights.check(model_parameters(tied)), "\"lm_head.weight\" isn't the embedding", "tie_word_embeddings");
  const test::TemporaryFolder both;
  write_shard(both / "model.safetensors", parameters, 0, parameters.size(), true);
  EXPECT_EQ(ModelFolder(both.path()).check(model_parameters(tied)), "");
  // Of many the first are named: a block uses few of a model's tensors.
  const std::string many = weights.check(std::span(parameters).first(1));
  EXPECT_EQ(std::ranges::count(many, '"'), 6) << many;
  EXPECT_EQ(std::ranges::count(many, '\n'), 0) << many;
  EXPECT_NE(many.find(fmt::format("{} tensors are", parameters.size() - 1)), std::string::npos) << many;
  EXPECT_TRUE(many.ends_with(fmt::format("and {} more", parameters.size() - 4))) << many;

  write_shard(folder / "model.safetensors", parameters, 0, parameters.size() - 1);
  EXPECT_REFUSED(ModelFolder(folder.path()).check(parameters), "lm_head.weight", "is missing", "tie_word_embeddings");
  parameters.push_back({"model.layers.0.self_attn.q_proj.bias", ParameterRole::query, 0, {64}});
  write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
  parameters.pop_back();
  EXPECT_REFUSED(ModelFolder(folder.path()).check(parameters), "q_proj.bias", "biases aren't supported");
}

TEST(ModelFolder, HoldBuffersOfOldFilesWithoutAWord) {
  const test::TemporaryFolder folder;
  std::vector<Parameter> parameters = model_parameters(tiny());
  const std::size_t own = parameters.size();
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "layers.12.self_attn.rotary_emb.inv_freq"})
    parameters.push_back({name, ParameterRole::query, 0, {4}});
  write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
  EXPECT_EQ(ModelFolder(folder.path()).check(std::span(parameters).first(own)), "");
  for (const char* name : {"model.layers.x.self_attn.rotary_emb.inv_freq", "model.layers..self_attn.rotary_emb.inv_freq"}) {
    parameters.back().name = name;
    write_shard(folder / "model.safetensors", parameters, 0, parameters.size());
    EXPECT_NE(ModelFolder(folder.path()).check(std::span(parameters).first(own)), "") << name;
  }
}

TEST(ModelFolder, MayHoldKeysAndValuesOfLayersThatTakeThoseOfOthers) {
  const test::TemporaryFolder folder;
  ModelConfig config = tiny();
  config.layers = 3;
  const std::vector<Parameter> all = model_parameters(config);
  write_shard(folder / "model.safetensors", all, 0, all.size());
  std::vector<LayerSpec> layers(3, config.layer(0));
  layers[2].layers_to_lender = 1;
  config.specs = LayerSpecs(layers);
  const std::vector<Parameter> own = model_parameters(config);
  EXPECT_EQ(own.size(), all.size() - 2);
  EXPECT_EQ(ModelFolder(folder.path()).check(own), "");
  layers[1].value_is_key = true;  // which is no reason to hold W_V
  config.specs = LayerSpecs(layers);
  const std::string warning = ModelFolder(folder.path()).check(model_parameters(config));
  EXPECT_NE(warning.find("tensor \"model.layers.1.self_attn.v_proj.weight\" is"), std::string::npos) << warning;
}

TEST(ModelFolder, AreFoundWithoutGpt2sPrefixUnlessThatIsAmbiguous) {
  const test::TemporaryFolder folder;
  const Parameter bare{"wte.weight", ParameterRole::embedding, 0, {5, 4}};
  Parameter prefixed = bare;
  prefixed.name = "transformer.wte.weight";
  write_shard(folder / "model.safetensors", {prefixed}, 0, 1);
  EXPECT_TRUE(ModelFolder(folder.path()).check(std::vector{bare}).empty());
  write_shard(folder / "model.safetensors", {bare, prefixed}, 0, 2);
  EXPECT_REFUSED(ModelFolder(folder.path()), "wte.weight", "given twice");
}

// The forms of all families are tried on each folder, whichever family it is of.
TEST(ModelFolder, OfEachFamilyAreFoundWithAndWithoutItsPrefix) {
  for (const ModelType& type : model_types()) {
    ModelConfig config = tiny();
    config.become(type);
    config.tied_embeddings = true;
    const std::vector<Parameter> parameters = model_parameters(config);
    const std::string exported(type.exported_prefix);
    const std::vector<std::function<std::string(const std::string&)>> writers = {
        [](const std::string& name) { return name; },
        [&](const std::string& name) { return exported + name; },
        [&](const std::string& name) { return name.substr(name.starts_with(type.prefix) ? type.prefix.size() : 0); },
    };
    for (const auto& written : writers) {
      const test::TemporaryFolder folder;
      std::vector<Parameter> renamed = parameters;
      for (Parameter& parameter : renamed) parameter.name = written(parameter.name);
      SCOPED_TRACE(fmt::format("{}, {}", type.name, renamed.back().name));
      write_shard(folder / "model.safetensors", renamed, 0, renamed.size());
      expect_all(ModelFolder(folder.path()), parameters);
    }
  }
}

TEST(ModelFolder, AreFoundUnderTheNamesOfOtherClassesAndWrappers) {
  ModelConfig config = tiny();
  config.tied_embeddings = true;
  const std::vector<Parameter> parameters = model_parameters(config);
  const auto without_head = [](const std::string& name) { return name.substr(std::string("model.").size()); };
  const auto wrapped_inside = [](const std::string& name) {
    const std::size_t block = std::string("model.layers.0.").size();
    return name.starts_with("model.layers.0.") ? name.substr(0, block) + "_checkpoint_wrapped_module." + name.substr(block)
                                               : name;
  };
  const std::vector<std::function<std::string(const std::string&)>> writers = {
      without_head,
      wrapped_inside,
      [](const std::string& name) { return "module." + name; },
      [](const std::string& name) { return "_orig_mod." + name; },
      [&](const std::string& name) { return "module._orig_mod." + without_head(name); },
      [](const std::string& name) { return "_orig_mod._fsdp_wrapped_module.model._fsdp_wrapped_module" + name.substr(5); },
  };
  for (const auto& written : writers) {
    const test::TemporaryFolder folder;
    std::vector<Parameter> renamed = parameters;
    for (Parameter& parameter : renamed) parameter.name = written(parameter.name);
    SCOPED_TRACE(renamed[1].name);
    ASSERT_NE(renamed[1].name, parameters[1].name);
    write_shard(folder / "model.safetensors", renamed, 0, renamed.size());
    expect_all(ModelFolder(folder.path()), parameters);
    // Twice the same tensor isn't a choice.
    renamed.push_back(parameters[1]);
    write_shard(folder / "model.safetensors", renamed, 0, renamed.size());
    EXPECT_REFUSED(ModelFolder(folder.path()), parameters[1].name, "given twice", renamed[1].name);
  }
  // Other names stay, and are named.
  const test::TemporaryFolder folder;
  std::vector<Parameter> odd = parameters;
  odd[1].name = "modules." + odd[1].name;
  write_shard(folder / "model.safetensors", odd, 0, odd.size());
  EXPECT_REFUSED(ModelFolder(folder.path()).check(parameters), parameters[1].name, "is missing");
}

}  // namespace
}  // namespace tsprun::detail::model_folder_test
