// `tsprun block` against PyTorch's autograd, as another implementation would be held against it: files in, files out, any layout.
#include "layers/io/config.h"
#include "tests/layers/reference_support.h"
#include "tests/oracle/torch_cases.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tsprun::detail::test::block_torch_test {
namespace {

TEST(Block, EqualsPyTorchUnderEveryLayout) {
  const TemporaryDirectory directory;
  const std::vector<std::string> modes = {"none", "selective", "full"};
  std::size_t compared = 0;
  std::size_t number = 0;
  for (const auto& folder : write_torch_cases("blocks", directory.path("cases"))) {
    const ModelConfig config = read_config(folder / "config.json").config;
    const auto expected = read_tensors(folder / "expected.safetensors");
    for (const std::size_t ranks : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
      if (config.query_heads % ranks != 0) continue;
      const std::string output = directory.path("Y.safetensors");
      const Finished run = run_tsprun({"block", "--config", folder / "config.json", "--weights", folder / "W.safetensors",
                                       "--input", folder / "X.safetensors", "--output", output, "--backward", "--dtype", "f64",
                                       "--recompute", modes[number++ % modes.size()], "-n", std::to_string(ranks)});
      ASSERT_EQ(run.end.code, 0) << run.describe();
      const auto found = read_tensors(output);
      ASSERT_EQ(found.size(), expected.size());
      double largest = 0;
      for (const auto& [name, values] : expected) {
        if (name.starts_with("grad.")) largest = std::max(largest, norm(values));
      }
      for (const auto& [name, values] : expected) {
        SCOPED_TRACE(folder.filename().string() + ", " + std::to_string(ranks) + " ranks");
        expect_close(name, found.at(name), values, 1e-11, name.starts_with("grad.") ? largest : 0);
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 40U);
}

}  // namespace
}  // namespace tsprun::detail::test::block_torch_test
