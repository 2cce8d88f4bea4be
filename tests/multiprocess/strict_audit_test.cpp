// `--audit strict`: the exit code says whether every rank held and received what was forecast, to the byte, also where files are
// read and written beside a small step.
#include "tests/support/block_files.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::test::strict_audit_test {
namespace {

using Arguments = std::vector<std::string>;

void expect_as_forecast(Arguments arguments) {
  arguments.insert(arguments.end(), {"--audit", "strict"});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

TEST(StrictAudit, HoldsForABlockWhoseGradientsAreWritten) {
  const TextData data(10);
  const BlockFiles block(data);
  for (const auto& [layout, dtype] : {std::pair("tsp=1", "f32"), std::pair("sp=2", "bf16")}) {
    Arguments command = block.command();
    command.insert(command.end(), {"--layout", layout, "--dtype", dtype, "--backward"});
    expect_as_forecast(command);
  }
}

TEST(StrictAudit, HoldsForTrainingsThatSaveAndGoOn) {
  const TextData data(2000);
  const Arguments common = {"--data", data.text(), "--seq", "2", "--save", data.path("runs")};
  const auto train = [&](Arguments more) {
    more.insert(more.begin(), "train");
    more.insert(more.end(), common.begin(), common.end());
    expect_as_forecast(more);
  };
  train({"-n", "2", "--config", "nano", "--dtype", "bf16", "--steps", "2"});
  train({"-n", "2", "--resume", data.path("runs"), "--steps", "3"});
  expect_as_forecast({"generate", "-n", "2", "--model", data.path("runs"), "--prompt", "A", "--tokens", "3"});
  const Finished wrong = run_tsprun({"generate", "--config", "nano", "--prompt", "A", "--audit", "severe"});
  EXPECT_EQ(wrong.end.code, 2) << wrong.describe();
  EXPECT_NE(wrong.err.find("--audit severe"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace tsprun::detail::test::strict_audit_test
