// Families of models, from folders as the hub has them, under several layouts, against PyTorch's witness of each
// (oracle/families): logits, loss, every gradient, steps of AdamW, greedy text; and saved again under the hub's names.
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/decode.h"
#include "layers/model/sampling.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/model_run.h"
#include "tests/layers/reference_support.h"
#include "tests/oracle/torch_cases.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::test::families_torch_test {
namespace {

/// A folder with what PyTorch says of it.
struct Case {
  std::filesystem::path folder;
  ModelConfig config;
  std::size_t batch = 0;
  std::size_t sequence = 0;
  std::vector<Token> ids;
  std::vector<std::int64_t> labels;
  std::optional<Token> document_end;
  bool sees_images = false;
  std::vector<double> losses;  // before each step and after the last
  std::vector<Token> prompt, greedy;
  std::vector<double> logits;
  Tensors gradients, after;

  explicit Case(const std::filesystem::path& at) : folder(at) {
    const LoadedConfig loaded = read_config(at / "config.json");
    sees_images = loaded.sees_images;
    EXPECT_EQ(sees_images, at.filename().string().ends_with("-images"));
    EXPECT_EQ(loaded.warnings.size(), sees_images ? 1 : 0);
    config = loaded.config;
    const nlohmann::json c = read_json((at / "case.json").string());
    batch = c.at("batch").get<std::size_t>();
    sequence = c.at("sequence").get<std::size_t>();
    for (const auto& row : c.at("ids")) ids.insert(ids.end(), row.begin(), row.end());
    for (const auto& row : c.at("labels")) labels.insert(labels.end(), row.begin(), row.end());
    if (c.contains("document_end")) document_end = c.at("document_end").get<Token>();
    losses = c.at("steps").get<std::vector<double>>();
    prompt = c.at("prompt").get<std::vector<Token>>();
    greedy = c.at("greedy").get<std::vector<Token>>();
    for (auto& [name, values] : read_tensors(at / "expected.safetensors")) {
      if (name == "logits") logits = values;
      else if (name.starts_with("grad.")) gradients[name.substr(5)] = values;
      else after[name.substr(6)] = values;
    }
  }
  TokenBatch view() const {
    return {.batch = batch, .sequence = sequence, .ids = ids, .labels = labels, .document_end = document_end};
  }
};

/// What a layout makes of a case.
struct Found {
  std::vector<double> losses;
  std::vector<Token> greedy;
  std::vector<double> logits;
  Tensors gradients, after;
};

/// If `save_to` isn't empty, writes the model there.
Found run(const Case& of, const Layout& layout, Recompute recompute, const std::filesystem::path& save_to = {}) {
  Found found;
  found.logits.resize(of.logits.size());
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = of.config, .dtype = DType::f64, .recompute = recompute, .training = true});
    const ModelFolder weights(of.folder);
    EXPECT_EQ(weights.check(model_parameters(of.config), of.sees_images), "");
    model.parameters().load(weights);
    if (!save_to.empty()) {
      CheckpointState state;
      state.step = 1;
      state.dtype = DType::f64;
      state.layout = layout;
      save_checkpoint(rank, context.world(), model.parameters(), of.config, state, save_to);
    }
    const LogitsSink sink = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& logits) {
      const std::lock_guard lock(mutex);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::size_t v = 0; v < logits.size(1); ++v)
          found.logits[rows[r] * of.config.vocabulary + first_id + v] = logits.as<double>()[r * logits.size(1) + v];
      }
    };
    model.evaluate(of.view(), &sink);
    if (Decoder::why_not(layout).empty()) {
      Decoder decoder(rank, model, {of.prompt.size() + of.greedy.size()});
      const std::vector<std::vector<Token>> prompts = {of.prompt};
      std::vector<Token> text = {sample(decoder.prompt(prompts).select(0, 0), {.temperature = 0}, 0)};
      while (text.size() < of.greedy.size())
        text.push_back(sample(decoder.step({&text.back(), 1}).select(0, 0), {.temperature = 0}, text.size()));
      if (context.rank() == 0) found.greedy = text;
    }
    std::vector<double> losses;
    for (std::size_t step = 1; step <= of.losses.size(); ++step) {
      losses.push_back(model.forward_backward(of.view()).mean);
      for (const ParameterPart& part : model.parameters().parts()) {
        const bool is_parameter = part.plan.parameter.role != ParameterRole::output_scale;  // its gradient stays 0
        if (step == 1 && is_parameter) collect(rank, part.plan, part.gradient, found.gradients, mutex);
        if (step == of.losses.size()) collect(rank, part.plan, part.value, found.after, mutex);
      }
      if (step < of.losses.size()) model.update({.clip = 0, .step = step}, model.gradient_norm());
    }
    if (context.rank() == 0) found.losses = losses;
  });
  return found;
}

/// Layouts that cut four query heads of two K/V heads: K/V heads that are shared and copied, slices, rings, exchanged heads.
std::vector<Layout> layouts() {
  return {Layout::tsp(1),
          Layout::tsp(4),
          Layout::parse("tp=2").with(TensorExchange::sequence),
          Layout::parse("tp=4"),
          Layout::parse("sp=2").with(SequenceExchange::ulysses),
          Layout::parse("sp=3").with(SequenceExchange::ring),
          Layout::parse("zero3=3"),
          Layout::parse("tp=2,tsp=2")};
}

/// Holds cases of torch_family_cases.py against PyTorch.
void expect_family(const std::string& cases) {
  const TemporaryDirectory directory;
  Process script({"/usr/bin/python3", TSP_ORACLE_DIR "/torch_family_cases.py", cases, directory.path("cases")});
  const End end = script.wait();
  ASSERT_TRUE(end.ended && end.code == 0) << "it needs Debian's packages python3 and python3-torch:\n" << script.err();
  std::size_t number = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path("cases"))) {
    const Case of(entry.path());
    for (const Layout& layout : layouts()) {
      const auto recompute = static_cast<Recompute>(number % 3);
      const std::string where = entry.path().filename().string() + ", " + layout.label();
      SCOPED_TRACE(where);
      const std::filesystem::path saved = directory.path("saved_" + std::to_string(number++));
      const Found found = run(of, layout, recompute, layout.ranks() == 4 ? saved : std::filesystem::path());
      expect_close("logits", found.logits, of.logits, 1e-12);
      expect_close("losses", found.losses, of.losses, 1e-12);
      expect_close(found.gradients, of.gradients, 1e-12, where);
      expect_close(found.after, of.after, 1e-10, where);
      if (Decoder::why_not(layout).empty()) {
        EXPECT_EQ(found.greedy, of.greedy);
      }
      if (layout.ranks() != 4) continue;
      std::vector<std::string> skipped;
      const std::filesystem::path folder = find_checkpoint(saved, skipped).folder;
      std::set<std::string> names, expected;
      const std::string_view prefix = of.config.type->exported_prefix;
      for (const auto& [name, values] : read_tensors(folder / "model.safetensors"))
        names.insert(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
      for (const auto& [name, values] : of.after) expected.insert(name);
      EXPECT_EQ(names, expected);
      EXPECT_TRUE(read_config(folder / "config.json").config.same_model(of.config));
    }
  }
  EXPECT_GE(number, layouts().size());
}

TEST(Families, LlamaWithScaledRotaryPositions) { expect_family("llama:plain,llama:llama3:5:untied,llama:linear:5"); }
TEST(Families, YarnInLlamaAndQwen2) { expect_family("llama:yarn,qwen2:yarn:5"); }
TEST(Families, Qwen2) { expect_family("qwen2:plain,qwen2:untied:5"); }
TEST(Families, Qwen3) { expect_family("qwen3:plain,qwen3:plain:5:untied"); }
TEST(Families, MistralWithoutAWindow) { expect_family("mistral:plain"); }
TEST(Families, Phi3WithFusedMatricesAndLongrope) { expect_family("phi3:window,phi3:longrope:5:untied,phi3:longrope"); }
TEST(Families, Ministral3WhoseQueriesGrow) { expect_family("ministral3:temperature,ministral3:temperature:5"); }
TEST(Families, Starcoder2WithAWindowAndWithoutBiases) { expect_family("starcoder2:window,starcoder2:biases,starcoder2:plain:5"); }
TEST(Families, Glm4WithNeighboursAsPairs) { expect_family("glm4:biases,glm4:plain:5"); }
TEST(Families, CohereWithSublayersSideBySide) { expect_family("cohere:plain,cohere:biases:5"); }
TEST(Families, StableLmWhichRotatesAPartOfAHead) { expect_family("stablelm:biases,stablelm:plain:5"); }
TEST(Families, MistralWithAWindow) { expect_family("mistral:window,mistral:window:5:untied"); }
TEST(Families, QwenWithWindowsInSomeLayers) { expect_family("qwen2:window,qwen3:types:5:untied"); }
TEST(Families, SmolLM3WithWindowsInSomeLayers) { expect_family("smollm3:unbiased:5:untied"); }
TEST(Families, SmolLM3WhoseLayersAreUnlike) { expect_family("smollm3:plain,smollm3:list:5:untied"); }

TEST(Families, GraniteWithItsMultipliers) { expect_family("granite:plain,granite:attention_bias:5"); }
TEST(Families, GemmaInBothFormsOfItsActivation) { expect_family("gemma:plain,gemma:exact,gemma:biases:5"); }
TEST(Families, Gemma2WithWindowsAndSoftCaps) { expect_family("gemma2:plain,gemma2:biases:5"); }
TEST(Families, Gemma3WithTwoRotaryBases) {
  expect_family("gemma3_text:plain:5,gemma3_text:plain:4:untied,gemma3_text:parameters");
}
TEST(Families, Gemma4WhoseFullLayersTakeValuesFromKeys) { expect_family("gemma4_text:dense:5,gemma4_text:biases:5:untied"); }
TEST(Families, Gemma4WhoseLastLayersTakeKeysOfOthers) {
  expect_family("gemma4_text:lent:5:untied,gemma4_text:lent,gemma4_text:shared:5");
}
TEST(Families, Gemma4WithInputsOfLayers) { expect_family("gemma4_text:inputs:5:untied,gemma4_text:inputs"); }
TEST(Families, Cohere2WhoseFullLayersRotateNothing) { expect_family("cohere2:plain:5,cohere2:pattern:4:untied"); }
TEST(Families, Exaone4WhoseFullLayersRotateNothing) { expect_family("exaone4:hybrid,exaone4:hybrid:5"); }
// Documents that are packed into sequences: rotated halves, neighbours and parts of heads, windows, two bases, scales of queries
// that grow with the position in the document.
TEST(Families, LlamaWithDocuments) { expect_family("llama:llama3:5:untied:documents,mistral:window:::documents"); }
TEST(Families, FamiliesWithDocuments) {
  expect_family(
      "glm4:biases:::documents,stablelm:plain:::documents,gemma3_text:plain:::documents,ministral3:temperature:5::documents");
}
/// Text models within multi-modal folders, as transformers 4 and 5 name their tensors.
TEST(Families, TextModelsOfModelsThatSeeImages) {
  expect_family(
      "gemma3_text:plain:::images,gemma3_text:plain:5:untied:images,gemma4_text:dense:5:untied:images,ministral3:temperature:5::"
      "images");
}
TEST(Families, PhiWhoseHeadHasABias) { expect_family("phi:plain,phi:plain:5"); }
TEST(Families, PhiWhoseHeadsHaveASizeOfTheirOwn) { expect_family("phi:heads"); }
TEST(Families, Gpt2WithLearnedPositions) { expect_family("gpt2:plain,gpt2:exact:5,gpt2:plain:::documents"); }
TEST(Families, Olmo2WithNormsOfAllHeadsTogether) { expect_family("olmo2:plain,olmo2:biases:5:untied"); }
TEST(Families, Olmo3WithWindowsThatAreNotScaled) { expect_family("olmo3:yarn,olmo3:yarn:4::documents"); }
TEST(Families, Exaone4WithNormsBehindItsSublayers) { expect_family("exaone4:full,exaone4:full:5:untied"); }

}  // namespace
}  // namespace tsprun::detail::test::families_torch_test
