// --gemm and TSP_GEMM from the command line: what computes is what was asked for, the same bits from run to run, as much memory
// as is forecast; and a library that doesn't work is refused before ranks start.

#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::gemm_test {
namespace {

using nlohmann::json;

std::vector<std::string> training(const TextData& data, const std::vector<std::string>& more, const char* steps = "2") {
  std::vector<std::string> words = {"train", "-n", "2",       "--config", "nano",    "--data", data.text(),
                                    "--seq", "64", "--batch", "2",        "--steps", steps};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json report_of(const TextData& data, const std::vector<std::string>& more, const ProcessOptions& options = {}) {
  std::vector<std::string> words = training(data, more);
  words.insert(words.end(), {"--json", data.path("report.json")});
  const Finished run = run_tsprun(words, options);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(run.out.find("audit: memory and traffic equal the forecast"), std::string::npos) << run.describe();
  return read_json(data.path("report.json"));
}

TEST(GemmOption, ChoosesWhatMultiplies) {
  const TextData data(3000);
  const json own = report_of(data, {"--gemm", "tsprun", "--dtype", "f64"});
  EXPECT_EQ(own.at("gemm"), "tsprun");
  const json one = report_of(data, {"--gemm", "openblas", "--dtype", "f64"});
  EXPECT_EQ(one.at("gemm").get<std::string>().find("openblas 0."), 0U) << one.at("gemm");
  const json other = report_of(data, {"--dtype", "f64", "--threads", "3"}, {.environment = {{"TSP_GEMM", "openblas"}}});
  EXPECT_EQ(other.at("gemm"), one.at("gemm"));
  ASSERT_EQ(one.at("steps").size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto loss = [&](const json& report) { return report.at("steps").at(i).at("loss").get<double>(); };
    EXPECT_EQ(loss(one), loss(other)) << "bits depend on the number of threads";
    EXPECT_NEAR(loss(one), loss(own), 1e-12);
  }
}

TEST(GemmOption, LoadsOpenBlasIntoRanksThatMultiplyByIt) {
  const TextData data(3000);
  for (const auto& [library, expected] : {std::pair{"tsprun", 0}, {"openblas", 2}}) {
    std::vector<std::string> words = training(data, {"--gemm", library}, "1000000");
    words.insert(words.begin(), tsprun_path());
    Process job(words);
    ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
    int loaded = 0;
    for (const pid_t pid : job.marked()) {
      std::ifstream maps(fmt::format("/proc/{}/maps", pid));
      const std::string text{std::istreambuf_iterator<char>(maps), {}};
      EXPECT_NE(text.find("/tsprun"), std::string::npos) << "nothing is known of process " << pid;
      if (text.find("openblas") == std::string::npos) continue;
      ++loaded;
      EXPECT_NE(pid, job.pid()) << "the process that starts ranks multiplies nothing";
    }
    EXPECT_EQ(loaded, expected) << library;
    job.signal(SIGTERM);
    EXPECT_TRUE(job.wait().ended) << job.err();
  }
}

TEST(GemmOption, ReachesProgramsAsAVariable) {
  const Finished run = run_tsprun({"--gemm", "openblas", "run", "--", "sh", "-c", "echo library $TSP_GEMM"});
  EXPECT_NE(run.out.find("library openblas"), std::string::npos) << run.describe();
}

TEST(GemmOption, IsRefusedBeforeRanksStartIfItsLibraryIsMissing) {
  const TextData data(3000);
  // A folder that is searched first holds a file by its name that is no library.
  std::ofstream(data.path("libopenblas.so.0")) << "nothing";
  const std::string file = data.path("libopenblas.so.0");
  const ProcessOptions without{.environment = {{"LD_LIBRARY_PATH", file.substr(0, file.rfind('/'))}}};
  const Finished run = run_tsprun(training(data, {"--gemm", "openblas"}), without);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  for (const char* words : {"can't load OpenBLAS", "libopenblas0-pthread", "--gemm tsprun"})
    EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
  EXPECT_EQ(run_tsprun(training(data, {"--gemm", "tsprun"}), without).end.code, 0);
  const Finished doctor = run_tsprun({"doctor", "--gemm", "openblas"}, without);
  EXPECT_EQ(doctor.end.code, 1) << doctor.describe();
  EXPECT_NE(doctor.out.find("can't load OpenBLAS"), std::string::npos) << doctor.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::gemm_test
