// Warnings of a tsprun that runs alone though its environment speaks of others.

#include "launcher/lone_start.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::lone_start_test {
namespace {

using Variables = std::map<std::string, std::string>;

std::string warning(const Variables& variables, const GlobalOptions& options = {}) {
  return lone_start(options, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_words(const Variables& variables, const std::vector<std::string>& words) {
  const std::string line = warning(variables);
  for (const std::string& word : words) EXPECT_NE(line.find(word), std::string::npos) << word << " in: " << line;
}

const Variables kPod = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "23456"}, {"WORLD_SIZE", "2"}, {"RANK", "1"}};

TEST(LoneStart, NamesWhatWasSeenAndWhatWouldJoinThem) {
  expect_words(kPod,
               {"WORLD_SIZE=2, RANK=1, MASTER_ADDR=head", "--nnodes 2 --node-rank 1 --rendezvous head:23456", "--nnodes 1"});
  expect_words({{"JOB_COMPLETION_INDEX", "3"}}, {"JOB_COMPLETION_INDEX=3", "--nnodes K --node-rank 3 --rendezvous HOST:29400"});
  expect_words({{"LWS_GROUP_SIZE", "4"}, {"LWS_WORKER_INDEX", "2"}, {"LWS_LEADER_ADDRESS", "lead.svc"}},
               {"LWS_GROUP_SIZE=4", "--nnodes 4 --node-rank 2 --rendezvous lead.svc:29400"});
  expect_words({{"VC_TASK_INDEX", "1"}, {"VC_WORKER_NUM", "2"}}, {"VC_TASK_INDEX=1", "--nnodes 2 --node-rank 1"});
  expect_words({{"VK_TASK_INDEX", "1"}}, {"VK_TASK_INDEX=1", "--node-rank 1"});
  expect_words({{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "1"}}, {"FLUX_JOB_SIZE=2", "--nnodes 2 --node-rank 1"});
  expect_words({{"NHOSTS", "2"}, {"JOB_ID", "7"}}, {"JOB_ID=7, NHOSTS=2", "one tsprun on each"});
  expect_words({{"LSB_MCPU_HOSTS", "a 4 b 4"}}, {"LSB_MCPU_HOSTS=a 4 b 4", "one tsprun on each"});
  expect_words({{"PBS_NUM_NODES", "2"}}, {"PBS_NUM_NODES=2", "one tsprun on each"});
  expect_words({{"SLURM_JOB_ID", "5"}, {"SLURM_NNODES", "2"}}, {"SLURM_NNODES=2", "srun -N2 --ntasks-per-node=1 tsprun -n"});
  expect_words({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}, {"LOCAL_RANK=0", "in torchrun's place"});
}

TEST(LoneStart, CountsTheHostsOfPbs) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path("nodefile");
  for (const char* text : {"a\na\n", "a\nb\n"}) {
    std::ofstream(path) << text;
    EXPECT_EQ(warning({{"PBS_NODEFILE", path}}).empty(), text[2] == 'a');
  }
  std::remove(path.c_str());
  EXPECT_EQ(warning({{"PBS_NODEFILE", path}}), "");
}

TEST(LoneStart, IsSilentWhereItIsMeantOrThereIsNobodyElse) {
  EXPECT_EQ(warning({}), "");
  EXPECT_EQ(warning({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"NHOSTS", "1"}, {"LSB_MCPU_HOSTS", "a 4"}, {"SLURM_NNODES", "1"}}), "");
  EXPECT_EQ(warning({{"SLURM_NNODES", "2"}, {"SLURM_STEP_ID", "0"}}), "");
  EXPECT_EQ(warning({{"WORLD_SIZE", "two"}, {"RANK", "0"}, {"FLUX_JOB_SIZE", ""}}), "");
  Variables rank = kPod;
  rank["TSP_NODE_FD"] = "5";
  EXPECT_EQ(warning(rank), "");
  GlobalOptions typed;
  typed.nnodes = "1";
  EXPECT_EQ(warning(kPod, typed), "");
  GlobalOptions pretended;
  pretended.nodes.text = "2";
  EXPECT_EQ(warning(kPod, pretended), "");
}

}  // namespace
}  // namespace tsprun::detail::launcher::lone_start_test
