// What core dumps of a job's processes tell: not the job's secret. A job of two nodes, whose processes are searched while they
// live, the pages that the kernel would write; and one that crashes, whose core the kernel does write.

#include "tests/support/dumped_memory.h"
#include "tests/support/free_port.h"
#include "tests/support/process.h"
#include "tests/support/text_data.h"
#include "transport/bootstrap/secret.h"
#include "transport/bootstrap/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::secret_in_core_test {
namespace {

// Sanitizers reserve terabytes, which nobody can search.
#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)

using Bytes = std::vector<std::byte>;

Bytes bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string names_of(const std::vector<MappedRegion>& regions) {
  std::string text;
  for (const MappedRegion& region : regions) text += fmt::format(" {}({:x}, {})", region.name, region.begin, region.mode);
  return text;
}

/// The test's own tool: it finds what lies on a heap, and what lies in a secret's page it must not find.
TEST(SearchOfDumpedMemory, FindsWhatLiesOnTheHeapButNoSecret) {
  // Made in place, so that this process has no other copy of either.
  const auto on_heap = std::make_unique<std::array<std::byte, 32>>();
  bootstrap::fill_random(*on_heap);
  const bootstrap::Secret hidden = bootstrap::random_secret();
  EXPECT_FALSE(dumped_regions_with(::getpid(), *on_heap).empty());
  EXPECT_TRUE(dumped_regions_with(::getpid(), hidden.bytes()).empty())
      << names_of(dumped_regions_with(::getpid(), hidden.bytes()));
  const auto copy = std::make_unique<std::array<std::byte, 32>>();
  std::copy(hidden.bytes().begin(), hidden.bytes().end(), copy->begin());
  EXPECT_FALSE(dumped_regions_with(::getpid(), hidden.bytes()).empty());
}

/// Two tspruns that train together over TLS. One has the secret from its environment, the other from a file.
class TheSecretOfALivingJob : public testing::TestWithParam<const char*> {
 protected:
  static std::string random_text() {
    std::array<std::byte, 32> bytes{};
    bootstrap::fill_random(bytes);
    std::string text;
    for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
  }

  std::vector<std::string> words(int node) const {
    std::vector<std::string> all = {tsprun_path(),
                                    "-n",
                                    "4",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port_),
                                    "--tls",
                                    GetParam()};
    if (node == 1) all.insert(all.end(), {"--secret-file", data_.path("secret")});
    all.insert(all.end(), {"train", "--config", "nano", "--data", data_.text(), "--seq", "32", "--steps", "1000000"});
    return all;
  }

  void SetUp() override {
    std::ofstream(data_.path("secret")) << text_ << "\n";
    ::chmod(data_.path("secret").c_str(), 0600);
  }

  /// Parts of the secret in each of its forms: a copy that was overwritten at one end only is still one.
  std::vector<std::pair<std::string, Bytes>> parts() const {
    const bootstrap::Secret hashed = bootstrap::secret_from_text(text_);
    bootstrap::StoreClient store(fmt::format("127.0.0.1:{}", port_), {hashed, std::string(GetParam()) != "off"}, 1000,
                                 20'000'000'000);
    const Bytes job = store.get(std::string(bootstrap::kJobKey), "the store to say which job this is");
    const bootstrap::Secret lanes = bootstrap::lanes_secret(hashed, job);
    std::vector<std::pair<std::string, Bytes>> all;
    const auto add = [&](const std::string& what, std::span<const std::byte> bytes) {
      for (std::size_t at = 0; at + 16 <= bytes.size(); at += 16) {
        const auto part = bytes.subspan(at, 16);
        all.emplace_back(fmt::format("bytes {} to {} of {}", at, at + 15, what), Bytes(part.begin(), part.end()));
      }
    };
    add("the text", bytes_of_text(text_));
    add("the secret", hashed.bytes());
    add("the secret of the lanes", lanes.bytes());
    return all;
  }

  const TextData data_{3000};
  const std::string text_ = random_text();
  const int port_ = free_port();
};

TEST_P(TheSecretOfALivingJob, IsInNoCoreOfAnyProcess) {
  const std::string marker = random_text();
  Process first(words(0), {.environment = {{"TSP_SECRET", text_}, {"OF_THIS_TEST", marker}}});
  Process second(words(1), {.environment = {{"OF_THIS_TEST", marker}}});
  ASSERT_TRUE(first.wait_for_output("step ", 5)) << first.err() << second.err();
  // The search reaches the environment and the heap of each process: it finds what does lie there.
  const Bytes of_environment = bytes_of_text(marker);
  const Bytes of_heap = bytes_of_text(data_.text());
  const std::vector<std::pair<std::string, Bytes>> forbidden = parts();
  std::vector<std::span<const std::byte>> patterns = {of_environment, of_heap};
  for (const auto& [what, bytes] : forbidden) patterns.emplace_back(bytes);
  int processes = 0;
  for (const Process* node : {&first, &second}) {
    for (const pid_t pid : node->marked()) {
      ++processes;
      const std::vector<std::vector<MappedRegion>> found = dumped_regions_with(pid, patterns);
      EXPECT_NE(names_of(found[0]).find("[stack]"), std::string::npos) << pid;
      EXPECT_NE(names_of(found[1]).find("[heap]"), std::string::npos) << pid;
      for (std::size_t i = 0; i < forbidden.size(); ++i) {
        EXPECT_TRUE(found[i + 2].empty()) << forbidden[i].first << " are in" << names_of(found[i + 2]) << " of "
                                          << (pid == node->pid() ? "tsprun" : "a rank") << " of node "
                                          << (node == &first ? 0 : 1);
      }
      // The memory of libcrypto and libssl, with the keys of connections, is left out.
      std::uint64_t hidden = 0;
      for (const MappedRegion& region : mapped_regions(pid)) {
        if (!region.dumped && !region.shared() && region.name.empty()) hidden += region.touched;
      }
      EXPECT_GT(hidden, 64U << 10) << pid;
    }
  }
  EXPECT_EQ(processes, 2 * 3);
}

/// A rank of the node that has the secret from a file crashes; then the tsprun that has it from its environment.
TEST_P(TheSecretOfALivingJob, IsInNoCoreThatTheKernelWrites) {
  for (const bool of_rank : {true, false}) {
    const TemporaryDirectory folder;
    const std::string marker = random_text();
    const auto dumping = [&](int node) {
      std::vector<std::string> all = {"sh", "-c", fmt::format("cd {}; ulimit -c unlimited; exec \"$@\"", folder.path("")), "sh"};
      std::ranges::copy(words(node), std::back_inserter(all));
      return all;
    };
    Process first(of_rank ? words(0) : dumping(0), {.environment = {{"TSP_SECRET", text_}, {"OF_THIS_TEST", marker}}});
    Process second(of_rank ? dumping(1) : words(1), {.environment = {{"OF_THIS_TEST", marker}}});
    ASSERT_TRUE(first.wait_for_output("step ", 5)) << first.err() << second.err();
    const std::vector<std::pair<std::string, Bytes>> forbidden = parts();
    std::vector<pid_t> ranks = second.marked();
    std::erase(ranks, second.pid());
    ASSERT_EQ(ranks.size(), 2U);
    ::kill(of_rank ? ranks.back() : first.pid(), SIGSEGV);
    EXPECT_EQ(first.wait(30).code, of_rank ? 1 : 128 + SIGSEGV) << first.err();
    EXPECT_EQ(second.wait(30).code, 1) << second.err();

    const std::filesystem::directory_iterator cores(folder.path(""));
    if (cores == std::filesystem::directory_iterator()) {
      GTEST_SKIP() << "the kernel writes no core into the folder of a process that crashes (core_pattern, ulimit -c)";
    }
    std::ifstream file(cores->path(), std::ios::binary);
    const std::string core((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_LT(core.size(), 300U << 20) << "the node's memory is in the core";
    EXPECT_NE(core.find(marker), std::string::npos) << "the core doesn't hold the environment: it proves nothing";
    for (const auto& [what, bytes] : forbidden) {
      EXPECT_EQ(core.find({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), std::string::npos)
          << what << " are in the core of " << (of_rank ? "a rank" : "tsprun");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tls, TheSecretOfALivingJob, testing::Values("on", "off"),
                         [](const auto& one) { return std::string(one.param) == "on" ? "WithTls" : "Plain"; });

#endif

TEST(TheSecretOfTheEnvironment, IsNotPassedOnToPrograms) {
  const Finished run = run_tsprun({"-n", "2", "run", "--", "sh", "-c", "echo \"<${TSP_SECRET-none}>\""},
                                  {.environment = {{"TSP_SECRET", "that nobody else may see"}}});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] <none>", "[1] <none>"})) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::secret_in_core_test
