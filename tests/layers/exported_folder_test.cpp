// Folders that a save leaves, for other programs: the tensors' names are those that transformers gives them. And folders that
// come from others: bf16 training keeps what an F32 file knows.
#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/io/digest.h"
#include "layers/io/safetensors_writer.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/checkpoint_support.h"
#include "tests/layers/transformers_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::exported_folder_test {
namespace {

using Names = std::set<std::string>;

ModelConfig config_of(std::string_view type, bool tied) {
  ModelConfig config = test::checkpoint_config();
  config.become(model_type(type));
  config.tied_embeddings = tied;
  if (type == "gpt2") {
    config.kv_heads = config.query_heads;
    config.head_dim = config.hidden / config.query_heads;
  }
  return config;
}

/// DIR/step-000010 of any model.
void save(const std::filesystem::path& dir, const ModelConfig& config, DType dtype, std::uint64_t salt) {
  const auto outcomes = test::try_ranks(2, [&](Context& context) {
    Rank rank(context);
    ParameterStore store(rank, dtype, test::checkpoint_plan(config, 2, rank.rank()), true);
    test::fill_elements(store, salt);
    save_checkpoint(rank, rank.world(), store, config, test::checkpoint_state(10, dtype), dir);
  });
  for (const test::RankOutcome& outcome : outcomes) ASSERT_FALSE(outcome.failed) << test::describe(outcomes);
}

template <class Once, class Layer>
Names names_of(const Once& once, const Layer& layer, std::size_t layers, bool tied) {
  Names names(once.begin(), once.end());
  for (std::size_t i = 0; i < layers; ++i) {
    for (const std::string_view name : layer) names.insert(fmt::format(fmt::runtime(name), i));
  }
  if (!tied) names.insert(std::string(test::kHead));
  return names;
}

Names names_in(const std::filesystem::path& file) {
  Names names;
  const safetensors::File opened(file);
  for (const safetensors::TensorInfo& tensor : opened.tensors()) names.insert(tensor.name);
  return names;
}

TEST(ExportedFolder, BearsTheNamesThatTransformersUses) {
  for (const std::string_view type : {"llama", "gpt2"}) {
    for (const bool tied : {false, true}) {
      const bool gpt2 = type == "gpt2";
      SCOPED_TRACE(fmt::format("{}, {}", gpt2 ? "gpt2" : "llama", tied ? "tied" : "untied"));
      const test::TemporaryFolder folder;
      const ModelConfig config = config_of(type, tied);
      save(folder.path(), config, DType::bf16, 3);
      const Names expected = gpt2 ? names_of(test::kGpt2Once, test::kGpt2Layer, config.layers, tied)
                                  : names_of(test::kLlamaOnce, test::kLlamaLayer, config.layers, tied);
      for (const char* file : {"model", "optimizer.m", "optimizer.v", "optimizer.master"}) {
        EXPECT_EQ(names_in(folder / fmt::format("step-000010/{}.safetensors", file)), expected) << file;
      }
      // And tsprun reads it again, as a model and as a checkpoint.
      const ModelFolder weights(folder / "step-000010");
      EXPECT_TRUE(weights.check(model_parameters(config)).empty());
      EXPECT_EQ(test::load_and_count_wrong(open_checkpoint(folder / "step-000010", true), 2, 3), 0U);
    }
  }
}

/// Returns the same file with other names.
void rename_tensors(const std::filesystem::path& path, const std::string& prefix) {
  std::vector<safetensors::PlannedTensor> planned;
  {
    const safetensors::File file(path);
    for (const safetensors::TensorInfo& tensor : file.tensors()) {
      const DType dtype = tensor.type == StoredType::BF16 ? DType::bf16 : DType::f32;
      ASSERT_EQ(tensor.name.starts_with(prefix), tensor.name != test::kHead) << tensor.name;
      planned.push_back({tensor.name.starts_with(prefix) ? tensor.name.substr(prefix.size()) : tensor.name, dtype, tensor.shape});
    }
    const safetensors::Plan plan(planned);
    std::filesystem::path other = path;
    other += ".renamed";
    safetensors::Writer writer = safetensors::Writer::create(other, plan);
    for (std::size_t i = 0; i < planned.size(); ++i) {
      std::vector<float> values(file.tensors()[i].elements());
      file.read(file.tensors()[i], std::span(values));
      writer.write(planned[i].name, std::span(std::as_const(values)));
    }
    writer.publish();
    std::filesystem::rename(other, path);
  }
}

TEST(ExportedFolder, OfGpt2WithoutThePrefixIsStillReadAsACheckpoint) {
  const test::TemporaryFolder folder;
  save(folder.path(), config_of("gpt2", false), DType::bf16, 3);
  Manifest manifest = parse_manifest(test::read_all(folder / "step-000010/manifest.json"), "m");
  for (CheckpointFile& file : manifest.files) {
    if (file.name == "config.json") continue;
    rename_tensors(folder / ("step-000010/" + file.name), "transformer.");
    const std::string bytes = test::read_all(folder / ("step-000010/" + file.name));
    file.bytes = bytes.size();
    file.checksum = hexadecimal(digest(std::as_bytes(std::span(bytes))));
  }
  folder.write("step-000010/manifest.json", manifest_json(manifest));
  EXPECT_EQ(test::load_and_count_wrong(open_checkpoint(folder / "step-000010", true), 2, 3), 0U);
}

TEST(ModelFromAFile, TrainsInBf16FromTheDigitsThatTheFileHas) {
  const test::TemporaryFolder folder;
  const ModelConfig config = test::checkpoint_config();
  const auto value_of = [](std::size_t parameter, std::size_t index) {
    return 1.0F + std::ldexp(static_cast<float>(parameter * 131 + index), -20);  // more digits than bf16 has
  };
  const std::vector<Parameter> parameters = model_parameters(config);
  std::vector<safetensors::PlannedTensor> planned;
  for (const Parameter& parameter : parameters) planned.push_back({parameter.name, DType::f32, parameter.shape});
  const safetensors::Plan plan(planned);
  safetensors::Writer writer = safetensors::Writer::create(folder / "model.safetensors", plan);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::vector<float> values(parameters[p].elements());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(p, i);
    writer.write(parameters[p].name, std::span(std::as_const(values)));
  }
  writer.publish();

  test::run_ranks(2, [&](Context& context) {
    Rank rank(context);
    ParameterStore store(rank, DType::bf16, test::checkpoint_plan(config, 2, rank.rank()), true);
    store.load(ModelFolder(folder.path()));
    std::size_t wrong = 0;
    std::size_t seen = 0;
    for (const ParameterPart& part : store.parts()) {
      const auto number = static_cast<std::size_t>(std::ranges::find(parameters, part.plan.parameter.name, &Parameter::name) -
                                                   parameters.begin());
      for (std::size_t i = 0; i < part.plan.rows(); ++i) {
        for (std::size_t j = 0; j < part.plan.width(); ++j) {
          const std::size_t row = part.plan.block.first_row + (part.plan.transposed ? j : i);
          const std::size_t column = part.plan.block.first_column + (part.plan.transposed ? i : j);
          const float expected = value_of(number, row * part.plan.parameter.columns() + column);
          const std::size_t at = i * part.plan.width() + j;
          const auto value = static_cast<float>(reinterpret_cast<const bf16*>(part.value.data())[at]);
          const bool right = reinterpret_cast<const float*>(part.master.data())[at] == expected &&
                             value == static_cast<float>(bf16(expected)) &&
                             reinterpret_cast<const float*>(part.m.data())[at] == 0;
          if (!right) ++wrong;
          ++seen;
        }
      }
    }
    EXPECT_EQ(wrong, 0U);
    EXPECT_GT(seen, 0U);
  });
}

}  // namespace
}  // namespace tsprun::detail::exported_folder_test
