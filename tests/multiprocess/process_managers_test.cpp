// Ranks on two nodes that a process manager started and not tsprun: Open MPI's and MPICH's mpirun, and Slurm's srun. Each manager
// is real, and this machine stands for both nodes: the manager's daemons run twice, and TSP_NODE keeps the nodes' ranks apart.

#include "tests/support/free_port.h"
#include "tests/support/process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <pwd.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::process_managers_test {
namespace {

using Words = std::vector<std::string>;

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

bool installed(const std::string& program) {
  return Process({"sh", "-c", fmt::format("PATH=$PATH:/usr/sbin command -v {}", program)}).wait().code == 0;
}

/// Returns the words that run an actor as a rank of the node that `node`, a word of the shell's, names.
Words actor_on(const std::string& node, const Words& action) {
  return {"sh", "-c", fmt::format("TSP_NODE={} exec '{}' {}", node, program_path("actor"), fmt::join(action, " "))};
}

/// Two runs with four ranks each: one node, two nodes. The results of each rank have the same bits.
void expect_same_digests(const Finished& one, const Finished& two) {
  EXPECT_EQ(one.end.code, 0) << one.describe();
  EXPECT_EQ(two.end.code, 0) << two.describe();
  const Words digests = sorted_lines(one.out);
  ASSERT_EQ(digests.size(), 4U) << one.describe();
  EXPECT_TRUE(std::ranges::all_of(digests, [](const std::string& line) { return line.starts_with("digest "); })) << one.out;
  EXPECT_EQ(sorted_lines(two.out), digests);
}

/// Rank 3 killed itself: the job ended, and somebody of each node said who it was, if all had the time to.
void expect_named(const Finished& run, const std::string& words) {
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_LT(run.end.seconds, 20) << run.describe();
  EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
}

/// By PMI-1, on the socket of hydra's proxies.
class UnderMpich : public testing::Test {
 protected:
  void SetUp() override {
    if (!installed("mpirun.mpich")) GTEST_SKIP() << "MPICH's mpirun isn't installed";
  }
  static Finished mpirun(const std::string& node, const Words& action) {
    return run_program(Words{"mpirun.mpich", "-launcher", "fork", "-hosts", "here:2,there:2", "-n", "4"} +
                       actor_on(node, action));
  }
};

TEST_F(UnderMpich, RanksOfOneNodeAndOfTwoAgree) {
  expect_same_digests(mpirun("a", {"digest"}), mpirun("$((PMI_RANK / 2))", {"digest"}));
}

TEST_F(UnderMpich, ADeathEndsTheJob) {
  const Finished run = mpirun("$((PMI_RANK / 2))", {"fail", "kill", "3"});
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_LT(run.end.seconds, 20) << run.describe();
  EXPECT_NE((run.out + run.err).find("EXIT CODE: 9"), std::string::npos) << run.describe();
}

/// By PMIx, from Open MPI's daemons, the second of which "there" isn't another host: the agent that starts it runs it here.
class UnderOpenMpi : public testing::Test {
 protected:
  void SetUp() override {
    if (!installed("mpirun.openmpi")) GTEST_SKIP() << "Open MPI's mpirun isn't installed";
    // Each daemon has files of its own: two that make folders under one name at the same time fail.
    std::ofstream(folder_.path("agent")) << fmt::format("#!/bin/sh\nshift\nexec sh -c \"$(echo \"$*\" | sed s,{0},{0}-$$,)\"\n",
                                                        folder_.path("mpi"));
    std::filesystem::permissions(folder_.path("agent"), std::filesystem::perms::owner_all);
  }
  Finished mpirun(const std::string& hosts, const Words& command, const std::string& timeout = "20") const {
    ProcessOptions options;
    options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}, {"TSP_TIMEOUT", timeout}};
    // Daemons on one machine would disturb each other's copy of its topology.
    return run_program(Words{"mpirun.openmpi", "--mca", "rtc", "^hwloc", "--mca", "orte_tmpdir_base", folder_.path("mpi"),
                             "--mca", "plm_rsh_agent", folder_.path("agent"), "-host", hosts, "-n", "4"} +
                           command,
                       options);
  }
  Finished on_two_nodes(const Words& action) const { return mpirun("here:2,there:2", actor_on(kNode, action)); }

  static constexpr char kNode[] = "$((OMPI_COMM_WORLD_RANK / 2))";

 private:
  TemporaryDirectory folder_;
};

TEST_F(UnderOpenMpi, RanksOfOneNodeAndOfTwoAgree) {
  expect_same_digests(mpirun("localhost:4", {program_path("actor"), "digest"}), on_two_nodes({"digest"}));
}

/// Survivors are deaf to mpirun's SIGTERM, which may come before they have found out.
TEST_F(UnderOpenMpi, ADeathIsNamedToTheSurvivors) {
  Words command = actor_on(kNode, {"fail", "kill", "3"});
  command.back() = "trap '' TERM; " + command.back();
  expect_named(mpirun("here:2,there:2", command), "rank 3 is gone");
}

TEST_F(UnderOpenMpi, ARankThatNeverJoinsEndsTheOthersWait) {
  Words command = actor_on(kNode, {"sum"});
  command.back() = "[ $OMPI_COMM_WORLD_RANK = 3 ] && exec sleep 20; " + command.back();
  const Finished run = mpirun("here:2,there:2", command, "1");
  expect_named(run, "PMIx_Fence didn't end within 1 s (TSP_TIMEOUT)");
}

/// A manager that isn't there any more, or that never started this process.
TEST_F(UnderOpenMpi, AManagerThatCannotBeReachedIsNamed) {
  ProcessOptions options;
  options.environment = {{"PMIX_RANK", "0"},
                         {"PMIX_NAMESPACE", "gone"},
                         {"PMIX_SERVER_URI2", "gone.0;tcp4://127.0.0.1:9"},
                         {"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  expect_named(run_program({program_path("actor"), "sum"}, options), "PMIx_Init: UNREACHABLE");
}

/// A cluster of two nodes, whose daemons run as this user. Its files are in a folder that is removed with it.
class SlurmCluster {
 public:
  SlurmCluster() {
    for (const char* name : {"munge", "control", "n1", "n2"}) std::filesystem::create_directories(folder_.path(name));
    std::filesystem::permissions(folder_.path("munge"), std::filesystem::perms::owner_all);
    std::ofstream(folder_.path("munge/key")) << std::string(1024, 'k');
    std::filesystem::permissions(folder_.path("munge/key"), std::filesystem::perms::owner_read);
    write_configuration();
    start({"munged", "--foreground", "--force", "--key-file=" + folder_.path("munge/key"), "--socket=" + socket(),
           "--pid-file=" + folder_.path("munge/pid"), "--log-file=" + folder_.path("munge/log"),
           "--seed-file=" + folder_.path("munge/seed")});
    for (int tries = 0; tries < 100 && !std::filesystem::exists(socket()); ++tries) ::usleep(50'000);
    start({"slurmctld", "-D"});
    for (const char* node : {"n1", "n2"}) start({"slurmd", "-D", "-N", node});
    for (int tries = 0; tries < 100 && command({"sinfo", "-h", "-t", "idle", "-o", "%D"}).out != "2\n"; ++tries)
      ::usleep(100'000);
  }

  Finished command(const Words& words) const { return run_program(words, options()); }
  Finished srun(const Words& how, const Words& what) const { return command(Words{"srun", "-O", "-n4"} + how + what); }

 private:
  std::string socket() const { return folder_.path("munge/socket"); }
  ProcessOptions options() const {
    ProcessOptions options;
    options.environment = {{"SLURM_CONF", folder_.path("slurm.conf")}};
    return options;
  }
  void start(Words words) {
    words[0] = "/usr/sbin/" + words[0];
    daemons_.push_back(std::make_unique<Process>(words, options()));
  }
  void write_configuration() const {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const passwd* const user = ::getpwuid(::geteuid());
    const std::string root = folder_.path("");
    std::ofstream file(folder_.path("slurm.conf"));
    file << "ClusterName=two\n"
         << "SlurmctldHost=" << host << "(127.0.0.1)\nSlurmctldPort=" << free_port() << "\n"
         << "SlurmUser=" << user->pw_name << "\nSlurmdUser=" << user->pw_name << "\n"
         << "AuthType=auth/munge\nAuthInfo=socket=" << socket() << "\n"
         << "StateSaveLocation=" << root << "control\nSlurmdSpoolDir=" << root << "%n\nTmpFS=" << root << "%n\n"
         << "SlurmctldPidFile=" << root << "control/pid\nSlurmdPidFile=" << root << "%n/pid\n"
         << "SlurmctldLogFile=" << root << "control/log\nSlurmdLogFile=" << root << "%n/log\n"
         << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
         << "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n";
    for (const char* node : {"n1", "n2"}) {
      file << "NodeName=" << node << " NodeHostname=" << host << " NodeAddr=127.0.0.1 Port=" << free_port() << " CPUs=1\n";
    }
    file << "PartitionName=all Nodes=n1,n2 Default=YES State=UP OverSubscribe=FORCE\n";
  }

  TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Process>> daemons_;
};

class UnderSlurm : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"munged", "slurmctld", "slurmd", "srun"}) {
      if (!installed(program)) GTEST_SKIP() << "Slurm's " << program << " isn't installed";
    }
    cluster_ = std::make_unique<SlurmCluster>();
  }
  const SlurmCluster& cluster() const { return *cluster_; }

  static constexpr char kNode[] = "$SLURM_NODEID";

 private:
  std::unique_ptr<SlurmCluster> cluster_;
};

/// By PMI-1, which the plugin pmi2 speaks, too, by PMIx, and by one tsprun on each node.
TEST_F(UnderSlurm, RanksOfOneNodeAndOfTwoAgree) {
  const Finished one = cluster().srun({"-N1"}, {program_path("actor"), "digest"});
  for (const char* plugin : {"pmi2", "pmix"}) {
    expect_same_digests(one, cluster().srun({"-N2", fmt::format("--mpi={}", plugin)}, actor_on(kNode, {"digest"})));
  }
  // The nodes' names are nobody's addresses here.
  const Words launchers = {"srun", "-N2", "--ntasks-per-node=1", "--export=ALL,MASTER_ADDR=127.0.0.1"};
  expect_same_digests(one, cluster().command(launchers + tsprun_actor({"-n", "4", "--no-prefix"}, {"digest"})));
}

TEST_F(UnderSlurm, ADeathIsNamedToTheSurvivors) {
  for (const char* plugin : {"pmi2", "pmix"}) {
    expect_named(cluster().srun({"-N2", fmt::format("--mpi={}", plugin)}, actor_on(kNode, {"fail", "kill", "3"})),
                 "rank 3 is gone");
  }
}

TEST_F(UnderSlurm, WithoutAWayToMeetTheRefusalNamesOne) {
  expect_named(cluster().srun({"-N2"}, actor_on(kNode, {"sum"})), "srun --mpi=pmi2");
}

}  // namespace
}  // namespace tsprun::detail::test::process_managers_test
