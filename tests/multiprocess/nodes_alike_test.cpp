// Before a rank starts all nodes prove that they compute the same from the same: weights, data, kernels, program. What differs is
// named on both, with both values.

#include "tests/multiprocess/two_launchers.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::nodes_alike_test {
namespace {

namespace fs = std::filesystem;

/// Changes one byte of a file: `from_end` 1 is the last.
void flip(const std::string& path, int from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-from_end, std::ios::end);
  file.put(byte);
}

class AlikeNodes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryDirectory;
    std::ofstream(folder_->path("text")) << std::string(400, 'a');
    const Finished run = run_tsprun({"-q", "train", "--config", "nano", "--data", folder_->path("text"), "--seq", "16", "--steps",
                                     "1", "--save", folder_->path("saved")});
    ASSERT_EQ(run.end.code, 0) << run.describe();
    for (const char* copy : {"model0", "model1"}) {
      fs::create_directory(folder_->path(copy));
      for (const char* name : {"config.json", "model.safetensors"})
        fs::copy_file(folder_->path("saved/step-000001/") + name, folder_->path(copy) + "/" + name);
    }
    flip(folder_->path("model1/model.safetensors"), 1);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  /// Starts node 0 and node 1 with a command each; both must be refused with exit code 2, and name all of `words`.
  static void expect_both_refused(const std::vector<std::string>& first_command, const std::vector<std::string>& second_command,
                                  const std::vector<std::string>& words,
                                  const std::map<std::string, std::string>& second_environment = {}) {
    const int port = free_port();
    ProcessOptions options = kSecret;
    options.environment.insert(second_environment.begin(), second_environment.end());
    Process first(node_words(0, port, first_command), kSecret);
    Process second(node_words(1, port, second_command), options);
    for (Process* process : {&first, &second}) {
      EXPECT_EQ(process->wait().code, 2) << process->err();
      for (const std::string& word : words) EXPECT_NE(process->err().find(word), std::string::npos) << process->err();
    }
  }
  static std::string path(const std::string& name) { return folder_->path(name); }

 private:
  static TemporaryDirectory* folder_;
};
TemporaryDirectory* AlikeNodes::folder_ = nullptr;

TEST_F(AlikeNodes, RefuseWeightsOfWhichOneByteDiffers) {
  const auto eval = [&](const char* model) {
    return std::vector<std::string>{"eval", "--model", path(model), "--data", path("text"), "--seq", "16"};
  };
  expect_both_refused(eval("model0"), eval("model1"),
                      {"different files: --model's model.safetensors (content ", ") on node 1, (content ", ") on node 0"});
  const auto generate = [&](const char* model) {
    return std::vector<std::string>{"generate", "--model", path(model), "--prompt", "a", "--tokens", "2"};
  };
  expect_both_refused(generate("model0"), generate("model1"), {"--model's model.safetensors (content "});
  const auto train = [&](const char* model) {
    return std::vector<std::string>{"train", "--model", path(model), "--data", path("text"), "--seq", "16", "--steps", "1"};
  };
  expect_both_refused(train("model0"), train("model1"), {"--model's model.safetensors (content "});
}

TEST_F(AlikeNodes, ComputeFromEqualFilesInDifferentPlaces) {
  fs::create_directory(path("copy0"));
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(path("model0/") + name, path("copy0/") + name, fs::copy_options::overwrite_existing);
  const int port = free_port();
  Process first(node_words(0, port, {"-q", "eval", "--model", path("model0"), "--data", path("text"), "--seq", "16"}), kSecret);
  Process second(node_words(1, port, {"-q", "eval", "--model", path("copy0"), "--data", path("text"), "--seq", "16"}), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
}

TEST_F(AlikeNodes, RefuseOtherKernels) {
  const std::vector<std::string> eval = {"eval", "--model", path("model0"), "--data", path("text"), "--seq", "16"};
  expect_both_refused(eval, eval, {"kernels baseline on node 1, ", " on node 0", "TSP_KERNELS"}, {{"TSP_KERNELS", "baseline"}});
}

TEST_F(AlikeNodes, RefuseAnotherLibraryOfMatrixProducts) {
  const std::vector<std::string> eval = {"eval", "--model", path("model0"), "--data", path("text"), "--seq", "16"};
  const char* const here = std::getenv("TSP_GEMM");
  const std::string other = here != nullptr && here == std::string("openblas") ? "tsprun" : "openblas";
  expect_both_refused(eval, eval, {"gemm " + other, "on node 1, ", " on node 0", "--gemm"}, {{"TSP_GEMM", other}});
}

TEST_F(AlikeNodes, RefuseOtherData) {
  std::ofstream(path("other")) << std::string(399, 'a') << 'b';
  const auto train = [&](const char* data) {
    return std::vector<std::string>{"train", "--config", "nano", "--data", path(data), "--seq", "16", "--steps", "1"};
  };
  expect_both_refused(train("text"), train("other"), {"different files: --data (content ", ") on node 1, (content "});
}

TEST_F(AlikeNodes, RefuseToDrawByOtherRecommendations) {
  for (const char* copy : {"drawn0", "drawn1"}) fs::copy(path("model0"), path(copy));
  std::ofstream(path("drawn0/generation_config.json")) << R"({"temperature": 0.7})";
  const auto generate = [&](const char* model) {
    return std::vector<std::string>{"generate", "--model", path(model), "--prompt", "a", "--tokens", "2", "--ignore-eos"};
  };
  expect_both_refused(generate("drawn0"), generate("drawn1"), {"generation_config.json"});
  std::ofstream(path("drawn1/generation_config.json")) << R"({"temperature": 0.8})";
  expect_both_refused(generate("drawn0"), generate("drawn1"), {"generation_config.json"});
}

TEST_F(AlikeNodes, RefuseAnotherPromptFile) {
  std::ofstream(path("a.bin"), std::ios::binary) << std::string("\1\0", 2);
  std::ofstream(path("b.bin"), std::ios::binary) << std::string("\2\0", 2);
  const auto generate = [&](const char* prompt) {
    return std::vector<std::string>{"generate", "--config", "nano", "--prompt", path(prompt), "--tokens", "2"};
  };
  expect_both_refused(generate("a.bin"), generate("b.bin"), {"different files: --prompt (content "});
}

/// Nodes find the difference before ranks start, not when these load the checkpoint.
TEST_F(AlikeNodes, RefuseToResumeFromDifferentCheckpoints) {
  fs::create_directory(path("elsewhere"));
  const Finished run = run_tsprun({"-q", "train", "--config", "nano", "--data", path("text"), "--seq", "16", "--steps", "1",
                                   "--seed", "7", "--save", path("elsewhere")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const auto train = [&](const char* from) {
    return std::vector<std::string>{"train", "--resume", path(from), "--data", path("text"), "--steps", "2"};
  };
  expect_both_refused(train("saved"), train("elsewhere"),
                      {"the checkpoint to go on from of step 1 (", ") on node 1, of step 1 ("});
}

TEST_F(AlikeNodes, RefuseAnotherProgram) {
  const std::string other = path("tsprun");
  fs::copy_file(tsprun_path(), other, fs::copy_options::overwrite_existing);
  std::ofstream(other, std::ios::app | std::ios::binary) << '\0';  // loads as before
  const int port = free_port();
  const std::vector<std::string> command = {"bench", "barrier"};
  std::vector<std::string> second_words = node_words(1, port, command);
  second_words.front() = other;
  Process first(node_words(0, port, command), kSecret);
  Process second(second_words, kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait().code, 2) << process->err();
    EXPECT_NE(process->err().find("build "), std::string::npos) << process->err();
    EXPECT_NE(process->err().find(") on node 1, "), std::string::npos) << process->err();
  }
}

/// Reading takes longer than --timeout: nobody is taken for lost that says it is busy.
TEST_F(AlikeNodes, WaitForOneThatReadsForLong) {
  const auto train = [&](const std::string& data) {
    return std::vector<std::string>{"--timeout", "3", "train", "--config", "nano", "--data", data, "--seq", "16", "--steps", "1"};
  };
  // A hole in memory takes no room, neither there nor in the page cache, but one core needs seconds to read it.
  const posix::UniqueFd hole(::memfd_create("hole", MFD_CLOEXEC));
  ProcessOptions on_one_core = kSecret;
  on_one_core.cores = 1;
  double took = 0;
  for (off_t gibibytes = 80; took < 4; gibibytes *= 2) {
    ASSERT_LE(gibibytes, 1280) << "reading that takes but " << took << " s";
    ASSERT_EQ(::ftruncate(hole.get(), gibibytes << 30), 0) << std::strerror(errno);
    const int port = free_port();
    const std::uint64_t begin = posix::now_ns();
    Process first(node_words(0, port, train(path("text"))), kSecret);
    Process second(node_words(1, port, train(fmt::format("/proc/{}/fd/{}", ::getpid(), hole.get()))), on_one_core);
    EXPECT_EQ(first.wait(300).code, 2) << first.err();
    EXPECT_EQ(second.wait(300).code, 2) << second.err();
    EXPECT_NE(first.err().find("--data (content "), std::string::npos) << first.err();
    took = static_cast<double>(posix::now_ns() - begin) * 1e-9;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::nodes_alike_test
