// How many calls it takes to read a rank's part of a matrix from a file, where the rank has some columns of every row.
#include "layers/io/safetensors_writer.h"
#include "layers/parameters/parameter_store.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <fstream>
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

}  // namespace
}  // namespace tsprun::detail::parameter_reads_test
