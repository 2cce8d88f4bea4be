// What `doctor` writes into its report, held against what the system itself says.
#include "core/collectives/choice.h"
#include "launcher/cli.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <dlfcn.h>
#include <filesystem>
#include <sched.h>
#include <string>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <vector>

namespace tsprun::detail::launcher::doctor_test {
namespace {

using nlohmann::json;

/// The whole report of `doctor` with these options.
json report_of(std::vector<const char*> options = {}) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path("report.json");
  options.insert(options.begin(), {"tsprun", "--json", path.c_str()});
  options.push_back("doctor");
  testing::internal::CaptureStdout();
  EXPECT_EQ(tsprun(static_cast<int>(options.size()), options.data()), 0);
  testing::internal::GetCapturedStdout();
  return test::read_json(path);
}

json soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(resource, &limit), 0);
  return limit.rlim_cur == RLIM_INFINITY ? json(nullptr) : json(limit.rlim_cur);
}

bool has_text(const json& value) { return value.is_string() && !value.get<std::string>().empty(); }

TEST(Doctor, ReportsCoresMemoryAndLimitsAsTheSystemHasThem) {
  const json report = report_of();
  EXPECT_EQ(report.at("command"), "doctor");
  EXPECT_TRUE(report.at("failure").is_null());
  const json& doctor = report.at("doctor");

  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const json& cores = doctor.at("cores");
  EXPECT_EQ(cores.at("affinity"), CPU_COUNT(&allowed));
  EXPECT_GE(cores.at("usable"), 1);
  EXPECT_LE(cores.at("usable"), CPU_COUNT(&allowed));
  if (cores.at("quota").is_null()) {
    EXPECT_EQ(cores.at("usable"), CPU_COUNT(&allowed));
  } else {
    EXPECT_GT(cores.at("quota"), 0);
    EXPECT_LE(cores.at("usable"), std::max(1.0, cores.at("quota").get<double>()));
  }
  constexpr std::array<const char*, 6> kLevels = {"amx_bf16", "avx512_bf16", "avx512", "avx2", "neon", "baseline"};
  EXPECT_EQ(std::ranges::count(kLevels, doctor.at("vector_level").get<std::string>()), 1) << doctor.at("vector_level");

  struct sysinfo system {};
  ASSERT_EQ(::sysinfo(&system), 0);
  const json& memory = doctor.at("memory");
  EXPECT_EQ(memory.at("total_bytes"), std::uint64_t{system.totalram} * system.mem_unit);
  EXPECT_GT(memory.at("available_bytes"), 0);
  EXPECT_LE(memory.at("available_bytes"), memory.at("total_bytes"));
  struct statvfs space {};
  const bool mounted = ::statvfs("/dev/shm", &space) == 0;
  EXPECT_EQ(doctor.at("dev_shm").at("total_bytes"), mounted ? std::uint64_t{space.f_blocks} * space.f_frsize : 0);
  EXPECT_LE(doctor.at("dev_shm").at("free_bytes"), doctor.at("dev_shm").at("total_bytes"));
  EXPECT_GE(doctor.at("heap_reservation_bytes"), std::uint64_t{1} << 20);
  EXPECT_TRUE(doctor.at("huge_page_policy_for_shared_memory").is_null() ||
              has_text(doctor.at("huge_page_policy_for_shared_memory")));
  EXPECT_EQ(doctor.at("most_local_ranks"), 1024);

  const json& limits = doctor.at("limits");
  EXPECT_EQ(limits.at("open_files"), soft_limit(RLIMIT_NOFILE));
  EXPECT_EQ(limits.at("processes"), soft_limit(RLIMIT_NPROC));
  EXPECT_EQ(limits.at("locked_memory_bytes"), soft_limit(RLIMIT_MEMLOCK));
  EXPECT_EQ(limits.at("address_space_bytes"), soft_limit(RLIMIT_AS));
}

TEST(Doctor, ReportsEveryTransportAndWhyItIsOrIsNotChosen) {
  const json doctor = report_of().at("doctor");
  const json& rdma = doctor.at("rdma");
  for (const json& port : rdma.at("ports")) {
    EXPECT_TRUE(has_text(port.at("device"))) << port;
    EXPECT_TRUE(has_text(port.at("state"))) << port;
    EXPECT_GE(port.at("port"), 1) << port;
    EXPECT_TRUE(port.at("active").is_boolean()) << port;
    for (const json& gid : port.at("gids")) {
      EXPECT_TRUE(has_text(gid.at("gid")) && has_text(gid.at("type"))) << port;
      EXPECT_TRUE(gid.at("index").is_number() && gid.at("chosen").is_boolean()) << port;
    }
  }
  for (const json& device : rdma.at("left_out"))
    EXPECT_TRUE(has_text(device.at("device")) && has_text(device.at("why"))) << device;
  for (const json& port : rdma.at("rank_alone")) EXPECT_TRUE(has_text(port)) << rdma;
  const bool verbs = rdma.at("self_test").at("possible");
  EXPECT_TRUE(has_text(rdma.at("self_test").at("why")));
  EXPECT_TRUE(rdma.at("locked_memory").is_null() || has_text(rdma.at("locked_memory")));
  const std::filesystem::path devices = "/sys/class/infiniband";
  if (!std::filesystem::exists(devices) || std::filesystem::is_empty(devices)) {
    EXPECT_TRUE(rdma.at("ports").empty() && rdma.at("left_out").empty()) << rdma;
    EXPECT_FALSE(verbs);
  }

  std::vector<std::string> kinds;
  for (const json& transport : doctor.at("transports")) {
    kinds.push_back(transport.at("kind"));
    EXPECT_TRUE(has_text(transport.at("why"))) << transport;
    // What no test here could do without.
    EXPECT_EQ(transport.at("possible"), kinds.back() == "verbs" ? verbs : true) << transport;
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"shm", "verbs", "tcp"}));

  const json& ways = doctor.at("ways");
  ASSERT_EQ(ways.size(), 2U) << ways;
  EXPECT_EQ(ways[0].at("between"), "same node");
  EXPECT_EQ(ways[0].at("kind"), "shm");
  EXPECT_EQ(ways[1].at("between"), "other nodes");
  EXPECT_EQ(ways[1].at("kind"), verbs ? "verbs" : "tcp");
  for (const json& way : ways) EXPECT_TRUE(has_text(way.at("why"))) << way;
  const json obeying = report_of({"--intra", "tcp", "--inter", "tcp"}).at("doctor").at("ways");
  for (const json& way : obeying) EXPECT_EQ(way.at("kind"), "tcp") << way;
  EXPECT_EQ(obeying.at(0).at("why"), "same node, but --intra tcp");
  EXPECT_EQ(obeying.at(1).at("why"), "--inter tcp");
}

TEST(Doctor, ReportsWhichLibrariesCanBeLoaded) {
  constexpr std::array<std::array<const char*, 2>, 3> kFiles = {
      {{"libibverbs", "libibverbs.so.1"}, {"libpmix", "libpmix.so.2"}, {"libopenblas", "libopenblas.so.0"}}};
  const json libraries = report_of().at("doctor").at("libraries");
  ASSERT_EQ(libraries.size(), kFiles.size()) << libraries;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    const auto& [name, file] = kFiles[i];
    EXPECT_EQ(libraries[i].at("name"), name);
    EXPECT_TRUE(has_text(libraries[i].at("purpose"))) << libraries;
    if (::dlopen(file, RTLD_LAZY) != nullptr) EXPECT_TRUE(libraries[i].at("trouble").is_null()) << libraries;
    else EXPECT_NE(libraries[i].at("trouble").get<std::string>().find(file), std::string::npos) << libraries;
  }
}

// For every operation there is a last line that fits whatever the size, the ranks and the memory.
TEST(Doctor, ReportsAnAlgorithmForEveryOperation) {
  const json algorithms = report_of().at("doctor").at("algorithms");
  for (const char* op : {"send", "recv", "send_recv", "broadcast", "all_gather", "reduce_scatter", "all_reduce", "reduce",
                         "all_to_all", "barrier"}) {
    json last;
    for (const json& row : algorithms) {
      if (row.at("op") != op) continue;
      EXPECT_TRUE(algorithm_from_name(row.at("algorithm").get<std::string>())) << row;
      EXPECT_TRUE(row.at("max_bytes").is_null() || row.at("max_bytes") > 0) << row;
      EXPECT_TRUE(row.at("max_ranks").is_null() || row.at("max_ranks") > 0) << row;
      last = row;
    }
    ASSERT_TRUE(last.is_object()) << op;
    EXPECT_TRUE(last.at("max_bytes").is_null() && last.at("max_ranks").is_null()) << last;
    EXPECT_EQ(last.at("needs_views"), false) << last;
  }
}

}  // namespace
}  // namespace tsprun::detail::launcher::doctor_test
