// Checkpoints that nothing disturbs: what lies in the folder, and that any number of ranks can go on from it.
#include "layers/checkpoints/checkpoint.h"

#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/checkpoint_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tsprun::detail::checkpoint_test {
namespace {

using Names = std::set<std::string>;

FoundCheckpoint found_in(const std::filesystem::path& dir) {
  std::vector<std::string> skipped;
  FoundCheckpoint found = find_checkpoint(dir, skipped);
  EXPECT_TRUE(skipped.empty());
  return found;
}

class CheckpointOf : public testing::TestWithParam<DType> {};

TEST_P(CheckpointOf, IsReadUnderAnyNumberOfRanks) {
  const test::TemporaryFolder folder;
  for (int saved_by = 1; saved_by <= 4; ++saved_by) {
    const auto salt = static_cast<std::uint64_t>(saved_by);
    test::save(folder.path(), saved_by, test::checkpoint_state(salt, GetParam()), salt);
    const FoundCheckpoint found = found_in(folder.path());
    EXPECT_EQ(found.folder, folder / step_folder(salt));
    for (int read_by = 1; read_by <= 4; ++read_by) {
      EXPECT_EQ(test::load_and_count_wrong(found, read_by, salt), 0U) << saved_by << " saved, " << read_by << " read";
    }
    EXPECT_GT(test::load_and_count_wrong(found, 2, salt + 1), 0U);
  }
}

TEST_P(CheckpointOf, HasTheSameBytesUnderEveryLayout) {
  const test::TemporaryFolder one;
  const test::TemporaryFolder three;
  test::save(one.path(), 1, test::checkpoint_state(7, GetParam()), 3);
  test::save(three.path(), 3, test::checkpoint_state(7, GetParam()), 3);
  Names expected = {"manifest.json", "config.json", "model.safetensors", "optimizer.m.safetensors", "optimizer.v.safetensors"};
  if (GetParam() == DType::bf16) expected.insert("optimizer.master.safetensors");
  ASSERT_EQ(test::names_in(one / "step-000007"), expected);
  ASSERT_EQ(test::names_in(three / "step-000007"), expected);
  for (const std::string& name : expected) {
    EXPECT_EQ(test::read_all(one / "step-000007" / name), test::read_all(three / "step-000007" / name)) << name;
  }
}

TEST_P(CheckpointOf, IsAModelFolder) {
  const test::TemporaryFolder folder;
  const ModelConfig config = test::checkpoint_config();
  test::save(folder.path(), 3, test::checkpoint_state(120, GetParam()), 1);

  const LoadedConfig loaded = read_config(folder / "step-000120/config.json");
  EXPECT_TRUE(loaded.config.same_model(config));
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelFolder weights(folder / "step-000120");
  EXPECT_TRUE(weights.check(model_parameters(config)).empty());
  for (const Parameter& parameter : model_parameters(config)) {
    EXPECT_EQ(weights.find(parameter.name)->type, stored_type_of(GetParam()));
    std::vector<double> values(parameter.elements());
    weights.read(parameter.name, {0, parameter.rows(), 0, parameter.columns()}, std::span(values));
    std::vector<double> expected(values.size());
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = test::element_of(parameter.name, 0, 1, i);
    EXPECT_EQ(values, expected) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CheckpointOf, testing::Values(DType::f32, DType::f64, DType::bf16),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST(Checkpoint, GivesBackTheRunsFactsBitByBit) {
  const test::TemporaryFolder folder;
  const CheckpointState state = test::checkpoint_state(1234567, DType::f64);
  test::save(folder.path(), 2, state, 1);
  const FoundCheckpoint found = found_in(folder.path());
  EXPECT_EQ(found.folder, folder / "step-1234567");
  EXPECT_EQ(found.state, state);
  EXPECT_TRUE(found.config.same_model(test::checkpoint_config()));
}

TEST(Checkpoint, NamesMicroBatchesWhereThereWereSome) {
  const test::TemporaryFolder folder;
  CheckpointState state = test::checkpoint_state(1);
  EXPECT_EQ(manifest_json({.state = state, .files = {}, .checksum = {}}).find("micro_batches"),
            std::string::npos);  // as versions before read it
  state.micro_batches = 3;
  test::save(folder.path(), 2, state, 1);
  EXPECT_EQ(found_in(folder.path()).state, state);
}

TEST(Checkpoint, NamesTheEndOfDocumentsWhereThereWasOne) {
  const test::TemporaryFolder folder;
  CheckpointState state = test::checkpoint_state(1);
  EXPECT_EQ(manifest_json({.state = state, .files = {}, .checksum = {}}).find("end_of_document"), std::string::npos);
  EXPECT_EQ(manifest_json({.state = state, .files = {}, .checksum = {}}).find("reset_attention"), std::string::npos);
  state.end_of_document = "<|endoftext|>";
  state.reset_attention = true;
  test::save(folder.path(), 2, state, 1);
  EXPECT_EQ(found_in(folder.path()).state, state);
}

TEST(Checkpoint, KeepsTheNewest) {
  const test::TemporaryFolder folder;
  folder.write("notes.txt", "the user's");
  std::filesystem::create_directory(folder / "step-5");  // no name of ours
  for (std::uint64_t step = 10; step <= 50; step += 10) test::save(folder.path(), 2, test::checkpoint_state(step), step, 2);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"notes.txt", "step-5", "step-000040", "step-000050"}));
  test::save(folder.path(), 2, test::checkpoint_state(60), 60);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"notes.txt", "step-5", "step-000040", "step-000050", "step-000060"}));
  test::save(folder.path(), 2, test::checkpoint_state(70), 70, 1);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"notes.txt", "step-5", "step-000070"}));
}

TEST(Checkpoint, OfAStepThatIsSavedAgainIsReplaced) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 1);
  folder.write("step-000010/model.safetensors", "damaged");
  test::save(folder.path(), 3, test::checkpoint_state(10), 2, 1);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000010"}));
  EXPECT_EQ(test::load_and_count_wrong(found_in(folder.path()), 2, 2), 0U);
}

TEST(Checkpoint, NeverDeletesTheOneJustSavedForTheSakeOfNewerOnes) {
  const test::TemporaryFolder folder;
  for (const std::uint64_t step : {10U, 20U, 30U}) test::save(folder.path(), 1, test::checkpoint_state(step), step);
  folder.write("step-000030/manifest.json", "damaged");
  test::save(folder.path(), 1, test::checkpoint_state(25), 25, 1);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000025", "step-000030"}));
}

TEST(Checkpoint, OfAnotherRunIsNeitherKeptInThePlaceOfOnesOwnNorDeleted) {
  const test::TemporaryFolder folder;
  const auto save = [&](char run, std::uint64_t step) {
    test::save(folder.path(), 2, test::of_run(run, test::checkpoint_state(step)), step, run == 'a' ? 2 : 0);
  };
  for (const std::uint64_t step : {8U, 9U}) save('b', step);
  for (const std::uint64_t step : {5U, 10U}) save('a', step);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000005", "step-000008", "step-000009", "step-000010"}));
  save('a', 15);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000008", "step-000009", "step-000010", "step-000015"}));
  // One that the run has replaced is its own; whose one is that can't be read, nobody knows.
  save('a', 9);
  folder.write("step-000010/manifest.json", "{}");
  save('a', 20);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000008", "step-000010", "step-000015", "step-000020"}));
}

TEST(Checkpoint, OfAnotherRunIsPassedOverWhereARunLooksForItsOwn) {
  const test::TemporaryFolder folder;
  const auto own = [&] { return search_checkpoints(folder.path(), {.run = std::string(32, 'a')}); };
  test::save(folder.path(), 1, test::of_run('b', test::checkpoint_state(80)), 1);
  EXPECT_FALSE(own().found);
  EXPECT_TRUE(own().skipped.empty());
  test::save(folder.path(), 1, test::of_run('a', test::checkpoint_state(50)), 2);
  ASSERT_TRUE(own().found);
  EXPECT_EQ(own().found->state.step, 50U);
  EXPECT_EQ(own().found->state.run, std::string(32, 'a'));
  EXPECT_EQ(search_checkpoints(folder.path()).found->state.step, 80U);
  // A run that knew no identity is another one.
  test::save(folder.path(), 1, test::checkpoint_state(90), 3);
  EXPECT_EQ(own().found->state.step, 50U);
}

TEST(Checkpoint, IsNotPublishedWithoutLeave) {
  const test::TemporaryFolder folder;
  const auto outcomes = test::try_ranks(2, [&](Context& context) {
    Rank rank(context);
    const ModelConfig config = test::checkpoint_config();
    ParameterStore store(rank, DType::f32, test::checkpoint_plan(config, 2, rank.rank()), true);
    const SaveOptions options{.before_publish = [] { throw Error(Cause::refused, "the lease is lost"); }};
    save_checkpoint(rank, rank.world(), store, config, test::checkpoint_state(10), folder.path(), options);
  });
  for (const test::RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::refused);
    EXPECT_EQ(outcome.message, "the lease is lost");
  }
  EXPECT_TRUE(test::names_in(folder.path()).empty());
}

TEST(Checkpoint, ThatIsMarkedIsPassedOverUntilItIsReplaced) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(checkpoints_in(folder / "missing").empty());
  for (const std::uint64_t step : {10U, 20U}) test::save(folder.path(), 1, test::checkpoint_state(step), 1);
  const CheckpointMarks others = checkpoints_in(folder.path());
  EXPECT_EQ(others.size(), 2U);
  const CheckpointSearchOptions options{.passed_over = others};
  EXPECT_FALSE(search_checkpoints(folder.path(), options).found);
  EXPECT_EQ(search_checkpoints(folder.path()).found->state.step, 20U);
  test::save(folder.path(), 1, test::checkpoint_state(5), 2);
  EXPECT_EQ(search_checkpoints(folder.path(), options).found->state.step, 5U);
  test::save(folder.path(), 1, test::checkpoint_state(10), 2);
  EXPECT_EQ(search_checkpoints(folder.path(), options).found->state.step, 10U);
}

TEST(Checkpoint, IsFoundByItsOwnFolderUnderAnyName) {
  const test::TemporaryFolder folder;
  test::save(folder / "a" / "b", 2, test::checkpoint_state(10), 1);  // folders are made
  std::filesystem::rename(folder / "a/b/step-000010", folder / "best");
  EXPECT_EQ(found_in(folder / "best").state.step, 10U);
}

TEST(ModelFolder, OfAFolderOfCheckpointsIsTheNewestWholeOne) {
  const test::TemporaryFolder folder;
  for (const std::uint64_t step : {10U, 20U, 30U}) test::save(folder.path(), 1, test::checkpoint_state(step), step);
  EXPECT_EQ(find_model_folder(folder.path(), true).folder, folder / "step-000030");
  EXPECT_EQ(find_model_folder(folder / "step-000020", true).folder, folder / "step-000020");
  // What isn't read doesn't matter; what is, does.
  std::filesystem::remove(folder / "step-000030/optimizer.m.safetensors");
  EXPECT_TRUE(find_model_folder(folder.path(), true).has_manifest);
  std::string bytes = test::read_all(folder / "step-000030/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("step-000030/model.safetensors", bytes);
  const FoundModel found = find_model_folder(folder.path(), true);
  EXPECT_EQ(found.folder, folder / "step-000020");
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_NE(found.skipped[0].find("step-000030/model.safetensors: checksum"), std::string::npos) << found.skipped[0];
  EXPECT_REFUSED(find_model_folder(folder / "step-000030", true), "step-000030/model.safetensors", "the file is damaged");
  EXPECT_EQ(find_model_folder(folder / "step-000030", false).folder, folder / "step-000030");
  EXPECT_EQ(find_model_folder(folder.path(), false).folder, folder / "step-000030");
  folder.write("step-000020/config.json", "{}");
  EXPECT_REFUSED(find_model_folder(folder / "step-000020", true), "config.json: 2 bytes", "manifest.json expects");
  EXPECT_REFUSED(find_model_folder(folder / "missing", true), "missing: no such folder");
}

TEST(ModelFolder, OfAnotherProgramIsTakenAsItIs) {
  const test::TemporaryFolder folder;
  folder.write("config.json", "{}");
  EXPECT_FALSE(find_model_folder(folder.path(), true).has_manifest);
  folder.write("manifest.json", R"({"format": "of something else"})");
  EXPECT_FALSE(find_model_folder(folder.path(), true).has_manifest);
  folder.write("manifest.json", R"({"format": "tsprun checkpoint"})");
  EXPECT_REFUSED(find_model_folder(folder.path(), true), "manifest.json: field \"version\" is missing");
  folder.write("manifest.json", "cut");
  EXPECT_REFUSED(find_model_folder(folder.path(), true), "manifest.json: expected JSON");
}

TEST(Checkpoint, LoadsWeightsAloneWhereNothingIsTrained) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 1);
  const FoundCheckpoint found = found_in(folder.path());
  test::run_ranks(2, [&](Context& context) {
    Rank rank(context);
    ParameterStore store(rank, DType::f32, test::checkpoint_plan(found.config, 2, rank.rank()), false);
    load_checkpoint(rank, rank.world(), store, found);
    for (const ParameterPart& part : store.parts()) {
      if (part.plan.rows() * part.plan.width() == 0) continue;
      const std::size_t first = part.plan.block.first_row * part.plan.parameter.columns() + part.plan.block.first_column;
      EXPECT_EQ(*reinterpret_cast<const float*>(part.value.data()), test::element_of(part.plan.parameter.name, 0, 1, first));
    }
  });
}

TEST(Checkpoint, OfAnotherModelIsRefusedOnAllRanks) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 1);
  const FoundCheckpoint found = found_in(folder.path());
  const auto load_as = [&](const ModelConfig& config, DType dtype) {
    return test::try_ranks(3, [&](Context& context) {
      Rank rank(context);
      ParameterStore store(rank, dtype, test::checkpoint_plan(config, 3, rank.rank()), true);
      load_checkpoint(rank, rank.world(), store, found);
    });
  };
  ModelConfig wider = found.config;
  wider.intermediate = 11;
  for (const test::RankOutcome& outcome : load_as(wider, DType::f32)) {
    EXPECT_EQ(outcome.cause, Cause::refused);
    EXPECT_NE(outcome.message.find("mlp.gate_proj.weight\": shape: expected [11, 12], found [10, 12]"), std::string::npos)
        << outcome.message;
  }
  for (const test::RankOutcome& outcome : load_as(found.config, DType::bf16)) {
    EXPECT_EQ(outcome.cause, Cause::refused);
    EXPECT_NE(outcome.message.find("holds f32 parameters"), std::string::npos) << outcome.message;
  }
}

TEST(Checkpoint, IsRefusedWhereRanksDontHoldAllOfTheModel) {
  const test::TemporaryFolder folder;
  const auto outcomes = test::try_ranks(2, [&](Context& context) {
    Rank rank(context);
    const ModelConfig config = test::checkpoint_config();
    std::vector<PackPlan> packs = test::checkpoint_plan(config, 2, rank.rank());
    if (rank.rank() == 1) packs.pop_back();
    ParameterStore store(rank, DType::f32, packs, true);
    save_checkpoint(rank, rank.world(), store, config, test::checkpoint_state(10), folder / "runs");
  });
  for (const test::RankOutcome& outcome : outcomes) EXPECT_EQ(outcome.cause, Cause::refused) << outcome.message;
  EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
}

TEST(Checkpoint, AFolderThatCantTakeOneIsRefusedBeforehand) {
  const test::TemporaryFolder folder;
  const ModelConfig config = test::checkpoint_config();
  check_save_folder(folder.path(), config, DType::f32);
  check_save_folder(folder / "a/b/c", config, DType::bf16);
  check_save_folder("a-folder-of-here", config, DType::f64);
  EXPECT_TRUE(test::names_in(folder.path()).empty());

  folder.write("file", "");
  EXPECT_REFUSED(check_save_folder(folder / "file", config, DType::f32), "--save", "file is no folder");
  EXPECT_REFUSED(check_save_folder(folder / "file/deeper", config, DType::f32), "--save", "file is no folder");
  EXPECT_REFUSED(check_save_folder("/proc/self/deeper", config, DType::f32), "--save /proc/self/deeper");
  ModelConfig huge = *std::ranges::find(built_in_configs(), "paper-7b", &ModelConfig::name);
  huge.layers = 10'000;
  EXPECT_REFUSED(check_save_folder(folder.path(), huge, DType::f32), "a checkpoint takes", "MB left", "another disk");
}

TEST(Checkpoint, SearchOfNothingSaysWhatWasExpected) {
  const test::TemporaryFolder folder;
  std::vector<std::string> skipped;
  EXPECT_REFUSED(find_checkpoint(folder.path(), skipped), folder.path().string(), "expected folders step-NNNNNN");
  EXPECT_REFUSED(find_checkpoint(folder / "missing", skipped), "missing", "No such file");
  EXPECT_FALSE(search_checkpoints(folder.path()).found);
}

}  // namespace
}  // namespace tsprun::detail::checkpoint_test
