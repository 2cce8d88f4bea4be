// A machine without libibverbs: jobs run by tcp, and what asks for RDMA is refused with the library's name.

#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::rdma_library_test {
namespace {

TEST(RdmaLibrary, IsMissedOnlyByWhatAsksForIt) {
  const TemporaryDirectory folder;
  // A folder that is searched first holds a file by its name that is no library.
  const std::string file = folder.path("libibverbs.so.1");
  std::ofstream(file) << "nothing";
  const ProcessOptions without{.environment = {{"LD_LIBRARY_PATH", file.substr(0, file.rfind('/'))}}};
  const auto run = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = {"-n", "2", "--nodes", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"bench", "all_reduce", "--sizes", "1K", "--iters", "1"});
    return run_tsprun(words, without);
  };
  const Finished by_tcp = run({});
  EXPECT_EQ(by_tcp.end.code, 0) << by_tcp.describe();
  EXPECT_NE(by_tcp.out.find("tcp"), std::string::npos) << by_tcp.describe();

  for (const std::vector<std::string>& demand : {std::vector<std::string>{"--inter", "verbs"}, {"--rdma", "mlx5_0"}}) {
    const Finished refused = run(demand);
    EXPECT_EQ(refused.end.code, 2) << refused.describe();
    for (const char* words : {"can't load libibverbs.so.1", "libibverbs1 and ibverbs-providers"})
      EXPECT_NE(refused.err.find(words), std::string::npos) << refused.describe();
    EXPECT_EQ(refused.err.find("no such device"), std::string::npos) << refused.describe();
  }

  const Finished doctor = run_tsprun({"doctor"}, without);
  EXPECT_EQ(doctor.end.code, 0) << doctor.describe();
  for (const char* words : {"verbs no: can't load libibverbs.so.1", "libibverbs   RDMA: can't load libibverbs.so.1"})
    EXPECT_NE(doctor.out.find(words), std::string::npos) << doctor.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::rdma_library_test
