// Reading a rank's part of a matrix from a file: how many calls it takes where the rank has some columns of every row, and what
// several threads make of it.
#include "layers/io/safetensors_writer.h"
#include "layers/parameters/not_finite.h"
#include "layers/parameters/parameter_store.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/refusal.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::parameter_reads_test {
namespace {

constexpr std::size_t kRows = 1500;
constexpr std::size_t kColumns = 1024;

/// Writes w [rows, columns] in f32, counting up, and returns the file's path.
std::filesystem::path counting_file(const test::TemporaryFolder& folder) {
  std::vector<float> values(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const safetensors::Plan plan({{"w", DType::f32, {kRows, kColumns}}});
  safetensors::Writer writer = safetensors::Writer::create(folder / "model.safetensors", plan);
  writer.write("w", std::span(std::as_const(values)));
  writer.publish();
  return folder / "model.safetensors";
}

/// Returns how often this process has called read() and its kin so far.
std::uint64_t reads_so_far() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "syscr:") return value;
  }
  ADD_FAILURE() << "/proc/self/io has no syscr";
  return 0;
}

TEST(ParameterStore, LoadsColumnsOfAMatrixInFewCalls) {
  const test::TemporaryFolder folder;
  const ModelFolder weights(counting_file(folder));
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    test::run_ranks(1, [&](Context& context) {
      Rank rank(context);
      const safetensors::Rectangle block{.first_row = 7, .rows = kRows - 7, .first_column = 300, .columns = 512};
      const Parameter parameter{.name = "w", .role = ParameterRole::output, .layer = 0, .shape = {kRows, kColumns}};
      ParameterStore store(rank, dtype, {{{{.parameter = parameter, .block = block, .transposed = true}}}}, false);
      const std::uint64_t before = reads_so_far();
      store.load(weights);
      const std::uint64_t calls = reads_so_far() - before;
      // 6 MiB lie between the first and the last element; a call for every row would be 1493.
      EXPECT_LE(calls, 40U) << name(dtype);
      std::size_t wrong = 0;
      const Tensor& value = store.parts().front().value;
      for (std::size_t column = 0; column < block.columns; ++column) {
        for (std::size_t row = 0; row < block.rows; ++row) {
          const auto expected = static_cast<float>((block.first_row + row) * kColumns + block.first_column + column);
          const double found = test::element(buffer_of(value), column * block.rows + row);
          if (found != static_cast<double>(dtype == DType::bf16 ? static_cast<float>(bf16(expected)) : expected)) ++wrong;
        }
      }
      EXPECT_EQ(wrong, 0U) << name(dtype);
    });
  }
}

// What is read ahead is what the store will read, of packs that replicas hold whole and of packs that are cut over them.
TEST(ParameterStore, ReadsTheRangesThatAreToldBefore) {
  const test::TemporaryFolder folder;
  const ModelFolder weights(counting_file(folder));
  const Parameter parameter{.name = "w", .role = ParameterRole::output, .layer = 0, .shape = {kRows, kColumns}};
  const safetensors::Rectangle block{.first_row = 3, .rows = 12, .first_column = 0, .columns = kColumns};
  for (const bool cut : {false, true}) {
    std::uint64_t told = 0;
    for (const int sharer : {0, 1, 2}) {
      test::run_ranks(1, [&](Context& context) {
        Rank rank(context);
        const std::vector<PackPlan> packs = {
            {.parts = {{.parameter = parameter, .block = block}}, .sharers = 3, .sharer = sharer, .cuts_weights = cut}};
        const ParameterStore store(rank, DType::f32, packs, false);
        const std::vector<file::Range> ranges = ranges_to_load(weights, packs);
        ASSERT_EQ(ranges.size(), store.parts().size());
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          const file::Range of_part = weights.range_of("w", store.parts()[i].plan.block);
          EXPECT_EQ(ranges[i].offset, of_part.offset);
          EXPECT_EQ(ranges[i].bytes, of_part.bytes);
          told += ranges[i].bytes;
        }
      });
    }
    EXPECT_EQ(told, block.rows * block.columns * sizeof(float) * (cut ? 1 : 3));
  }
}

TEST(ParameterStore, LoadsTheSameInTheSameMemoryWithAnyNumberOfThreads) {
  const test::TemporaryFolder folder;
  const ModelFolder weights(counting_file(folder));
  const safetensors::Rectangle block{.first_row = 3, .rows = kRows - 4, .first_column = 0, .columns = kColumns};
  const Parameter parameter{.name = "w", .role = ParameterRole::output, .layer = 0, .shape = {kRows, kColumns}};
  for (const bool transposed : {false, true}) {
    std::uint64_t most = 0;
    for (const std::size_t threads : {1U, 2U, 3U, 64U}) {
      test::run_ranks(1, [&](Context& context) {
        Rank rank(context, {.threads = threads});
        ParameterStore store(rank, DType::f32, {{{{.parameter = parameter, .block = block, .transposed = transposed}}}}, false);
        store.load(weights);
        const Buffer value = buffer_of(store.parts().front().value);
        std::size_t wrong = 0;
        for (std::size_t row = 0; row < block.rows; ++row) {
          for (std::size_t column = 0; column < block.columns; ++column) {
            const std::size_t at = transposed ? column * block.rows + row : row * block.columns + column;
            if (test::element(value, at) != static_cast<double>((block.first_row + row) * kColumns + column)) ++wrong;
          }
        }
        EXPECT_EQ(wrong, 0U) << threads;
        if (threads == 1) most = context.memory_peaks().total;
        EXPECT_EQ(context.memory_peaks().total, most) << threads;
      });
    }
  }
}

TEST(ParameterStore, NamesTheFirstElementThatIsNotFiniteWithAnyNumberOfThreads) {
  const test::TemporaryFolder folder;
  const ModelFolder weights(counting_file(folder));
  const safetensors::Rectangle block{.first_row = 0, .rows = kRows, .first_column = 0, .columns = kColumns};
  const Parameter parameter{.name = "w", .role = ParameterRole::output, .layer = 0, .shape = {kRows, kColumns}};
  for (const std::size_t threads : {1U, 3U}) {
    test::run_ranks(1, [&](Context& context) {
      Rank rank(context, {.threads = threads});
      ParameterStore store(rank, DType::f32, {{{{.parameter = parameter, .block = block}}}}, false);
      store.load(weights);
      auto* const values = reinterpret_cast<float*>(store.parts().front().value.data());
      values[1450 * kColumns + 2] = std::numeric_limits<float>::infinity();
      values[1020 * kColumns + 7] = std::numeric_limits<float>::quiet_NaN();
      values[1020 * kColumns + 9] = std::numeric_limits<float>::quiet_NaN();
      const std::string said =
          test::refused_text([&] { check_finite(rank, context.world(), store, [](const Parameter&) { return "file: "; }); });
      EXPECT_NE(said.find("file: tensor \"w\" [1500, 1024] holds nan at [1020, 7]"), std::string::npos) << said;
    });
  }
}

}  // namespace
}  // namespace tsprun::detail::parameter_reads_test
