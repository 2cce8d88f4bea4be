// Which nodes there are and where they meet, from the variables of srun, torchrun and mpirun.

#include "launcher/starter.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::starter_test {
namespace {

using Variables = std::map<std::string, std::string>;

std::string take(GlobalOptions& options, const Variables& variables) {
  return take_from_starter(options, [&](const char* name) -> const char* {
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

void expect_refused(const Variables& variables, const std::vector<std::string>& words) {
  GlobalOptions options;
  try {
    take(options, variables);
    ADD_FAILURE() << "accepted: " << options.nnodes << " " << options.node_rank.text << " " << options.rendezvous;
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    for (const std::string& word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

void expect_nothing_taken(const Variables& variables) {
  GlobalOptions options;
  EXPECT_EQ(take(options, variables), "");
  EXPECT_EQ(options.nnodes + options.node_rank.text + options.rendezvous + options.ranks.text, "");
}

/// Task 1 of `srun -N2 --ntasks-per-node=1`, as Slurm 22.05 sets it.
const Variables kSrun = {{"SLURM_JOB_ID", "71"},
                         {"SLURM_STEP_ID", "2"},
                         {"SLURM_STEPID", "2"},
                         {"SLURM_PROCID", "1"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_NNODES", "2"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                         {"SLURM_STEP_NODELIST", "n[07-08]"}};
const Variables kPet = {{"PET_NNODES", "4"},
                        {"PET_NODE_RANK", "3"},
                        {"PET_NPROC_PER_NODE", "8"},
                        {"PET_MASTER_ADDR", "head"},
                        {"PET_MASTER_PORT", "23456"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"MASTER_ADDR", "head"}};
const Variables kHydra = {{"PMI_SIZE", "3"},        {"PMI_RANK", "2"},       {"MPI_LOCALNRANKS", "1"},
                          {"MPI_LOCALRANKID", "0"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "5000"}};

TEST(Starter, SrunTellsNodesNumberAndMeetingPoint) {
  GlobalOptions options;
  const std::string line = take(options, kSrun);
  EXPECT_EQ(options.nnodes, "2");
  EXPECT_EQ(options.node_rank.text, "1");
  EXPECT_EQ(options.rendezvous.substr(0, 4), "n07:");
  const int port = std::stoi(options.rendezvous.substr(4));
  EXPECT_GE(port, 10000);
  EXPECT_LT(port, 32768);  // Linux gives those above to outgoing connections
  for (const char* word : {"srun", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"})
    EXPECT_NE(line.find(word), std::string::npos) << line;
}

TEST(Starter, SrunsStepsMeetAtTheirOwnPorts) {
  std::set<std::string> ports;
  for (int step = 0; step < 20; ++step) {
    GlobalOptions first;
    GlobalOptions second;
    take(first, with(kSrun, {{"SLURM_STEP_ID", std::to_string(step)}, {"SLURM_NODEID", "0"}}));
    take(second, with(kSrun, {{"SLURM_STEP_ID", std::to_string(step)}}));
    EXPECT_EQ(first.rendezvous, second.rendezvous);
    ports.insert(first.rendezvous);
  }
  EXPECT_GE(ports.size(), 19U);
}

TEST(Starter, ABatchScriptsOwnProcessIsAlone) {
  // sbatch -N2 --ntasks-per-node=1: the script runs once, on the first node, and is no step of srun.
  Variables batch = with(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "n[07-08]"}});
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
                           "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"})
    batch = without(batch, name);
  expect_nothing_taken(batch);
  // Where a step's variables are there, it says itself that it is one task: salloc's shell.
  expect_nothing_taken(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NUM_NODES", "1"}}));
  expect_nothing_taken(without(kSrun, "SLURM_PROCID"));
  expect_nothing_taken({{"SLURM_JOB_ID", "71"}, {"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}});
}

TEST(Starter, TorchrunsVariablesTellTheRanksToo) {
  GlobalOptions options;
  const std::string line = take(options, kPet);
  EXPECT_EQ(options.nnodes, "4");
  EXPECT_EQ(options.node_rank.text, "3");
  EXPECT_EQ(options.rendezvous, "head:23456");
  EXPECT_EQ(options.ranks.text, "32");
  EXPECT_NE(line.find("PET_NPROC_PER_NODE"), std::string::npos) << line;
  GlobalOptions given;
  given.layout.text = "tp=4";
  take(given, with(kPet, {{"PET_RDZV_ENDPOINT", "other:1"}, {"PET_NNODES", "4:4"}, {"PET_NPROC_PER_NODE", "gpu"}}));
  EXPECT_EQ(given.ranks.text, "");
  EXPECT_EQ(given.nnodes, "4");
  EXPECT_EQ(given.rendezvous, "other:1");
  // torchrun's own port, where the endpoint has none.
  for (const auto& [endpoint, point] : Variables{{"other", "other:29400"}, {"[::1]", "[::1]:29400"}, {"[::1]:7", "[::1]:7"}}) {
    GlobalOptions meeting;
    take(meeting, with(kPet, {{"PET_RDZV_ENDPOINT", endpoint}}));
    EXPECT_EQ(meeting.rendezvous, point);
  }
}

TEST(Starter, OneNodeOfTorchrunsHasAsManyRanksAsItSays) {
  for (const Variables& variables : {with(kPet, {{"PET_NNODES", "1"}}), without(kPet, "PET_NNODES")}) {
    GlobalOptions options;
    EXPECT_EQ(take(options, variables), "taken from PET_*: -n 8 (PET_NPROC_PER_NODE)");
    EXPECT_EQ(options.ranks.text, "8");
    EXPECT_EQ(options.nnodes + options.node_rank.text + options.rendezvous, "");
    GlobalOptions typed;
    typed.ranks.text = "3";
    EXPECT_EQ(take(typed, variables), "");
    EXPECT_EQ(typed.ranks.text, "3");
  }
  expect_nothing_taken(with(kPet, {{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "auto"}}));
  // Whoever knows of several nodes has more to say.
  GlobalOptions options;
  take(options, with(kSrun, {{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "2"}}));
  EXPECT_EQ(options.nnodes, "2");
}

TEST(Starter, MpirunsNeedAMeetingPoint) {
  for (const Variables& variables : {kOpenMpi, kHydra}) {
    GlobalOptions options;
    take(options, variables);
    EXPECT_EQ(options.nnodes, "3");
    EXPECT_EQ(options.node_rank.text, "2");
    EXPECT_EQ(options.rendezvous, variables.contains("MASTER_PORT") ? "head:5000" : "head:29400");
    expect_refused(without(variables, "MASTER_ADDR"), {"--rendezvous", "MASTER_ADDR", "--nnodes 1"});
    GlobalOptions told;
    told.rendezvous = "there:7";
    take(told, without(variables, "MASTER_ADDR"));
    EXPECT_EQ(told.rendezvous, "there:7");
    EXPECT_EQ(told.node_rank.text, "2");
  }
}

TEST(Starter, WhatIsTypedWins) {
  GlobalOptions all;
  all.nnodes = "5";
  all.node_rank.text = "4";
  all.rendezvous = "x:1";
  EXPECT_EQ(take(all, with(kSrun, {{"SLURM_STEP_NUM_NODES", "nonsense"}})), "");
  EXPECT_EQ(all.nnodes + all.node_rank.text + all.rendezvous, "54x:1");
  GlobalOptions one;
  one.node_rank.text = "0";
  const std::string line = take(one, kSrun);
  EXPECT_EQ(one.node_rank.text, "0");
  EXPECT_EQ(line.find("--node-rank"), std::string::npos) << line;
  for (const char* alone : {"1", ""}) {
    GlobalOptions options;
    (*alone == '1' ? options.nnodes : options.nodes.text) = *alone == '1' ? "1" : "2";
    EXPECT_EQ(take(options, with(kSrun, {{"SLURM_STEP_NUM_TASKS", "9"}})), "");
  }
}

TEST(Starter, MasterAddressAndPortAreWhereToMeet) {
  GlobalOptions options;
  take(options, with(kSrun, {{"MASTER_ADDR", "10.0.0.9"}, {"MASTER_PORT", "777"}}));
  EXPECT_EQ(options.rendezvous, "10.0.0.9:777");
  GlobalOptions six;
  take(six, with(kSrun, {{"MASTER_ADDR", "fd00::1"}, {"MASTER_PORT", "777"}}));
  EXPECT_EQ(six.rendezvous, "[fd00::1]:777");
}

TEST(Starter, ARankOfTsprunStartsAJobOfItsOwn) { expect_nothing_taken(with(kSrun, {{"TSP_NODE_FD", "5"}})); }

TEST(Starter, TheInnermostWins) {
  GlobalOptions options;
  take(options, with(kSrun, kOpenMpi));
  EXPECT_EQ(options.nnodes, "3");
  // srun --mpi=pmi2 sets PMI_SIZE and PMI_RANK itself.
  GlobalOptions pmi2;
  take(pmi2, with(kSrun, {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}));
  EXPECT_EQ(pmi2.rendezvous.substr(0, 4), "n07:");
  // hydra's helpers are srun's tasks, one a node; its processes are several.
  expect_refused(with(kSrun, with(kHydra, {{"MPI_LOCALNRANKS", "3"}})), {"MPI_LOCALNRANKS=3"});
}

TEST(Starter, ContradictionsAreRefusedByName) {
  expect_refused(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "8"}}), {"SLURM_STEP_NUM_TASKS=8", "--ntasks-per-node=1", "--nnodes 1"});
  expect_refused(with(kSrun, {{"SLURM_NODEID", "2"}}), {"SLURM_NODEID=2", "0 to 1"});
  expect_refused(with(kSrun, {{"SLURM_STEP_NUM_NODES", "two"}}), {"SLURM_STEP_NUM_NODES=two"});
  expect_refused(without(kSrun, "SLURM_NODEID"), {"SLURM_NODEID isn't set"});
  expect_refused(with(kSrun, {{"SLURM_STEP_NODELIST", "n[07"}}), {"SLURM_STEP_NODELIST=n[07"});
  expect_refused(with(kSrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"});
  expect_refused(with(kPet, {{"PET_NNODES", "1:4"}}), {"PET_NNODES=1:4"});
  expect_refused(without(kPet, "PET_NODE_RANK"), {"PET_NODE_RANK isn't set"});
  expect_refused(with(kPet, {{"PET_NODE_RANK", "4"}}), {"PET_NODE_RANK=4"});
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE=2", "mpirun -N 1"});
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}}), {"OMPI_COMM_WORLD_RANK=3"});
}

TEST(Starter, ReadsTheFirstOfANodeList) {
  EXPECT_EQ(first_of_node_list("n01"), "n01");
  EXPECT_EQ(first_of_node_list("n01,m2"), "n01");
  EXPECT_EQ(first_of_node_list("n[001-016,20],m2"), "n001");
  EXPECT_EQ(first_of_node_list("n[3,5-7]-ib"), "n3-ib");
  EXPECT_EQ(first_of_node_list("rack[2-3]node[10-12]"), "rack2node10");
  EXPECT_EQ(first_of_node_list("10.0.0.1"), "10.0.0.1");
  for (const char* bad : {"", "n[1-2", "n]1", "n[]", ",n"}) EXPECT_EQ(first_of_node_list(bad), "") << bad;
}

}  // namespace
}  // namespace tsprun::detail::launcher::starter_test
