// Who a process is, from the variables of its starter.

#include "transport/bootstrap/identity.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::bootstrap::identity_test {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Identity> identify(const Variables& variables) {
  return identity_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}
Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

/// Expects a refusal whose words hold all of `names`.
void expect_refused(const Variables& variables, const std::vector<std::string>& names) {
  try {
    identify(variables);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    for (const std::string& word : names) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << "\"" << word << "\" is missing in: " << error.what();
    }
  }
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_PORT", "29500"},
                             {"MASTER_ADDR", "localhost"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "3087597569"},    {"PMIX_RANK", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},         {"SLURM_LOCALID", "3"},
                          {"SLURM_JOB_ID", "71"}, {"SLURM_STEP_ID", "2"},        {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_NODEID", "0"},  {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}};

const Variables kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

TEST(Identity, OfAProcessThatNobodyStartedAsARankIsNone) {
  EXPECT_FALSE(identify({}));
  EXPECT_FALSE(identify({{"MASTER_PORT", "29500"}, {"PMIX_NAMESPACE", "x"}, {"LOCAL_RANK", "0"}, {"HOME", "/root"}}));
}

TEST(Identity, OfTsprun) {
  const auto identity =
      identify({{"TSP_NODE_FD", "3"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->starter, "tsprun");
  EXPECT_EQ(identity->node_descriptor, 3);
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->size, 2);
  EXPECT_EQ(identity->local_rank, 1);
  EXPECT_EQ(identity->local_size, 2);
  EXPECT_EQ(identity->job_id, "");
}

TEST(Identity, OfTorchrun) {
  const auto identity = identify(kTorchrun);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->starter, "torchrun");
  EXPECT_EQ(identity->node_descriptor, -1);
  EXPECT_EQ(identity->rank, 5);
  EXPECT_EQ(identity->size, 8);
  EXPECT_EQ(identity->local_rank, 1);
  EXPECT_EQ(identity->local_size, 4);
  EXPECT_EQ(identity->job_id, "29500");
  EXPECT_EQ(identify(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "b1c2"}}))->job_id, "b1c2");
  // What every static run is called tells no two apart.
  EXPECT_EQ(identify(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}}))->job_id, "29500");
}

TEST(Identity, OfOpenMpi) {
  const auto identity = identify(kOpenMpi);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->starter, "Open MPI");
  EXPECT_EQ(identity->rank, 2);
  EXPECT_EQ(identity->size, 4);
  EXPECT_EQ(identity->local_rank, 2);
  EXPECT_EQ(identity->local_size, 4);
  EXPECT_EQ(identity->job_id, "3087597569");
  EXPECT_FALSE(identity->pmix);
  // Ranks of several nodes meet by PMIx.
  EXPECT_TRUE(identify(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))->pmix);
}

TEST(Identity, OfSlurm) {
  const auto identity = identify(kSlurm);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->starter, "Slurm");
  EXPECT_EQ(identity->rank, 3);
  EXPECT_EQ(identity->size, 4);
  EXPECT_EQ(identity->local_rank, 3);
  EXPECT_EQ(identity->local_size, 4);
  EXPECT_EQ(identity->job_id, "71.2");
}

TEST(Identity, OfSlurmCountsTheTasksOfItsNode) {
  const Variables many = with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2),3,1"},
                                       {"SLURM_STEP_NUM_TASKS", "8"},
                                       {"SLURM_NTASKS", "8"},
                                       {"SLURM_STEP_NUM_NODES", "4"},
                                       {"SLURM_PROCID", "5"},
                                       {"SLURM_LOCALID", "1"},
                                       {"SLURM_NODEID", "2"}});
  EXPECT_EQ(identify(many)->local_size, 3);
  EXPECT_EQ(identify(with(many, {{"SLURM_NODEID", "1"}, {"SLURM_PROCID", "3"}}))->local_size, 2);
  EXPECT_EQ(identify(with(many, {{"SLURM_NODEID", "3"}, {"SLURM_PROCID", "7"}, {"SLURM_LOCALID", "0"}}))->local_size, 1);
  expect_refused(with(many, {{"SLURM_NODEID", "4"}}), {"SLURM_STEP_TASKS_PER_NODE"});
  for (const char* bad : {"x", "2(x", "2(x2", "2(x2)1", "0", "-1", "2,", "99999999999"}) {
    expect_refused(with(many, {{"SLURM_STEP_TASKS_PER_NODE", bad}}), {"SLURM_STEP_TASKS_PER_NODE"});
  }
}

// A batch script is no task of srun, though it bears the job's variables.
TEST(Identity, OfASlurmBatchScriptIsNone) { EXPECT_FALSE(identify(without(kSlurm, "SLURM_STEP_ID"))); }

TEST(Identity, UnderPmiIsLearntFromTheProcessManager) {
  const std::optional<Identity> found = identify(kHydra);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->starter, "PMI");
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->size, 4);
  EXPECT_EQ(found->pmi_descriptor, 9);
  EXPECT_FALSE(identify(with(kHydra, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})));
  expect_refused(with(kHydra, {{"PMI_RANK", "4"}}), {"PMI_RANK=4", "3"});
  // Ranks of srun need it if they are on several nodes.
  EXPECT_EQ(identify(with(kSlurm, {{"PMI_FD", "9"}}))->pmi_descriptor, -1);
  const Variables several = with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "1,3"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "2"}});
  EXPECT_EQ(identify(with(several, {{"PMI_FD", "9"}}))->pmi_descriptor, 9);
  EXPECT_FALSE(identify(with(several, {{"PMI_FD", "9"}}))->pmix);
  EXPECT_TRUE(identify(with(several, {{"PMIX_RANK", "3"}}))->pmix);
  EXPECT_FALSE(identify(several)->pmix);
}

TEST(Identity, IsThatOfTheInnermostStarter) {
  Variables all = kSlurm;
  EXPECT_EQ(identify(all = with(all, kOpenMpi))->starter, "Open MPI");
  EXPECT_EQ(identify(all = with(all, kTorchrun))->starter, "torchrun");
  EXPECT_EQ(identify(all = with(all, {{"TSP_NODE_FD", "3"}}))->starter, "tsprun");
  EXPECT_EQ(identify(with(kSlurm, {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.71.2"}}))->starter, "Slurm");
}

TEST(Identity, OfAnIncompleteSetIsRefusedByName) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
    expect_refused(without(kTorchrun, name), {name, "torchrun"});
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"}) {
    expect_refused(without(kOpenMpi, name), {name, "Open MPI"});
  }
  for (const char* name : {"SLURM_LOCALID", "SLURM_JOB_ID"}) expect_refused(without(kSlurm, name), {name, "Slurm"});
  expect_refused({{"TSP_NODE_FD", "3"}}, {"WORLD_SIZE", "tsprun"});
  expect_refused({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-host-1@1"}}, {"PMIX_RANK"});
  expect_refused(without(kHydra, "PMI_FD"), {"PMI_FD", "PMI"});
}

TEST(Identity, ThatContradictsItselfIsRefusedWithTheValue) {
  expect_refused(with(kTorchrun, {{"RANK", "8"}}), {"RANK=8", "7"});
  expect_refused(with(kTorchrun, {{"RANK", "-1"}}), {"RANK=-1"});
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0", "1"});
  expect_refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE=9", "8"});
  expect_refused(with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "3"});
  // Rank 0 can't be the second of its node, and with all ranks on one node both numbers are one.
  expect_refused(with(kTorchrun, {{"RANK", "0"}}), {"LOCAL_RANK=1"});
  expect_refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}}), {"LOCAL_RANK=1"});
  for (const char* bad : {"1x", " 1", "1.0", "0x1", "1e3", "99999999999999999999", "one"}) {
    expect_refused(with(kTorchrun, {{"RANK", bad}}), {std::string("RANK=") + bad});
    expect_refused(with(kTorchrun, {{"TSP_NODE_FD", bad}}), {std::string("TSP_NODE_FD=") + bad});
  }
}

TEST(Identity, TakesAnEmptyVariableForAbsent) {
  expect_refused(with(kTorchrun, {{"RANK", ""}}), {"RANK"});
  EXPECT_FALSE(identify({{"RANK", ""}, {"TSP_NODE_FD", ""}}));
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::identity_test
