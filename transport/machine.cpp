// Parses the files under /proc and the cgroup folders, innermost first, and takes the tightest limit.
#include "transport/machine.h"

#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <poll.h>
#include <sched.h>
#include <set>
#include <sstream>
#include <string_view>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::machine {

namespace {

/// Numbers beyond these are taken for none.
constexpr int kMostNumaNodes = 1024;
constexpr std::size_t kMostCores = 1 << 20;
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<std::int64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  return line ? number_from<std::int64_t>(*line) : std::nullopt;
}

bool holds_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

/// Returns the folders of this process's cgroup and of all that enclose it, innermost first: of a v1 controller, or of v2 if
/// `controller` is empty. The limits of all of them apply.
std::vector<std::string> cgroup_folders(const std::string& controller) {
  // hierarchy-id:controllers:path
  std::string path;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : holds_word(controllers, controller)) path = line.substr(second + 1);
  }
  if (path.empty()) return {};

  // id parent device root mount-point options … - type source super-options
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string skip;
    std::string root;
    std::string mount_point;
    std::string type;
    std::string options;
    left >> skip >> skip >> skip >> root >> mount_point;
    right >> type >> skip >> options;
    const bool fits = controller.empty() ? type == "cgroup2" : type == "cgroup" && holds_word(options, controller);
    if (!fits) continue;

    std::string below = path;
    if (root != "/" && below.starts_with(root)) below.erase(0, root.size());
    // A path outside the mount ("/../…", or one that doesn't exist here) tells no limits; those of the mount's root apply.
    if (below.find("..") != std::string::npos || ::access((mount_point + below).c_str(), X_OK) != 0) below.clear();
    std::vector<std::string> folders;
    while (!below.empty() && below != "/") {
      folders.push_back(mount_point + below);
      below.erase(below.rfind('/'));
    }
    folders.push_back(mount_point);
    return folders;
  }
  return {};
}

/// Returns a quota of CPU time per period as a number of cores; 0: no quota.
double in_cores(std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return 0;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// Reads cpu.max of cgroup v2: "max 100000" or "150000 100000".
double quota_v2(const std::string& folder) {
  const auto line = first_line(folder + "/cpu.max");
  if (!line) return 0;
  const std::size_t space = line->find(' ');
  if (space == std::string::npos) return 0;
  return in_cores(number_from<std::int64_t>(line->substr(0, space)), number_from<std::int64_t>(line->substr(space + 1)));
}

double quota_v1(const std::string& folder) {
  return in_cores(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us"));
}

/// Returns what sysinfo(2) tells of memory, for machines where /proc isn't mounted. Page cache that could be dropped doesn't
/// count as free.
Space without_proc() {
  struct sysinfo memory {};
  if (::sysinfo(&memory) != 0) return {};
  return {.free = memory.freeram * memory.mem_unit, .total = memory.totalram * memory.mem_unit};
}

/// Returns the number after `key` in a file of lines "key number …"; 0 if there is none.
std::uint64_t count_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line, name, value; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> value && name == key) return number_from<std::uint64_t>(value).value_or(0);
  }
  return 0;
}

/// Returns the bytes left under a cgroup's limit. Page cache counts as used, except for inactive files.
std::uint64_t left_under(const std::string& folder, const char* limit_file, const char* usage_file, const char* inactive_key) {
  const auto limit = number_in(folder + "/" + limit_file);
  const auto usage = number_in(folder + "/" + usage_file);
  if (!limit || !usage || *limit < 0 || *usage < 0) return kUnlimited;
  const auto reclaimable = static_cast<std::int64_t>(count_in(folder + "/memory.stat", inactive_key));
  const std::int64_t used = std::max<std::int64_t>(0, *usage - reclaimable);
  return *limit > used ? static_cast<std::uint64_t>(*limit - used) : 0;
}

std::uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return limit.rlim_cur;
}

/// Returns the cores in a process's affinity mask (0: this process's); empty if it can't be read.
std::set<std::size_t> cores_of(pid_t process) {
  std::set<std::size_t> cores;
  // The kernel refuses masks shorter than its own; grow until it fits.
  for (std::size_t cpus = 1024; cpus <= (std::size_t{1} << 20); cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(cpus);
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, mask);
    const bool known = ::sched_getaffinity(process, bytes, mask) == 0;
    const bool too_short = !known && errno == EINVAL;
    for (std::size_t core = 0; known && core < cpus; ++core) {
      if (CPU_ISSET_S(core, bytes, mask)) cores.insert(core);
    }
    CPU_FREE(mask);
    if (!too_short) break;
  }
  return cores;
}

/// Bounds a number of cores by the cgroups' CPU quota; at least 1.
int under_quota(int cores) {
  const double quota = cpu_quota();
  if (quota <= 0 || quota >= cores) return cores;
  return std::max(1, static_cast<int>(quota));
}

}  // namespace

int allowed_cores() {
  const auto count = static_cast<int>(cores_of(0).size());
  return count > 0 ? count : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

double cpu_quota() {
  double smallest = 0;
  const auto consider = [&](double quota) {
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  };
  for (const std::string& folder : cgroup_folders("")) consider(quota_v2(folder));
  for (const std::string& folder : cgroup_folders("cpu")) consider(quota_v1(folder));
  return smallest;
}

int usable_cores() { return under_quota(allowed_cores()); }

int usable_cores(std::span<const int> processes) {
  std::set<std::size_t> together;
  for (const int process : processes) together.merge(cores_of(process));
  return together.empty() ? usable_cores() : under_quota(static_cast<int>(together.size()));
}

int numa_node_of_this_thread(const char* folder) {
  const std::set<std::size_t> cores = cores_of(0);
  int nodes = 0;
  int found = -1;
  for (int node = 0; node < kMostNumaNodes; ++node) {
    const std::optional<std::string> list = first_line(fmt::format("{}/node{}/cpulist", folder, node));
    if (!list) continue;
    ++nodes;
    std::string_view rest = *list;  // "0-3,8-11"
    std::set<std::size_t> here;
    while (!rest.empty()) {
      std::string_view range = take_word(rest, ',');
      const auto first = number_from<std::size_t>(take_word(range, '-'));
      const auto last = range.empty() ? first : number_from<std::size_t>(range);
      for (std::size_t core = first.value_or(1); first && last && core <= std::min(*last, kMostCores); ++core) here.insert(core);
    }
    if (!cores.empty() && std::ranges::includes(here, cores)) found = node;
  }
  return nodes > 1 ? found : -1;
}

std::uint64_t available_memory() {
  std::uint64_t available = has_proc() ? 1024 * count_in("/proc/meminfo", "MemAvailable:") : without_proc().free;
  for (const std::string& folder : cgroup_folders("")) {
    available = std::min(available, left_under(folder, "memory.max", "memory.current", "inactive_file"));
  }
  for (const std::string& folder : cgroup_folders("memory")) {
    available = std::min(available, left_under(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
  }
  return available;
}

std::uint64_t total_memory() {
  const std::uint64_t total = 1024 * count_in("/proc/meminfo", "MemTotal:");
  return total != 0 ? total : without_proc().total;
}

OutOfMemoryKills out_of_memory_kills() {
  OutOfMemoryKills kills;
  kills.machine = count_in("/proc/vmstat", "oom_kill");
  const std::vector<std::string> v2 = cgroup_folders("");
  const std::vector<std::string> v1 = cgroup_folders("memory");
  if (!v2.empty()) kills.cgroup += count_in(v2.front() + "/memory.events", "oom_kill");
  if (!v1.empty()) kills.cgroup += count_in(v1.front() + "/memory.oom_control", "oom_kill");
  if (v1.empty()) {  // v1 counts no such thing
    kills.limit = 0;
    for (const std::string& folder : v2) *kills.limit += count_in(folder + "/memory.events", "oom");
  }
  return kills;
}

Shortage shortage(const OutOfMemoryKills& before, const OutOfMemoryKills& after) {
  if (after.cgroup == before.cgroup) return after.machine > before.machine ? Shortage::machine : Shortage::none;
  // A killer that looks for victims on the whole machine may find one in this cgroup, whose limit is nowhere near.
  if (!before.limit || !after.limit) return Shortage::either;
  return *after.limit > *before.limit ? Shortage::cgroup : Shortage::machine;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string boot_identity() { return first_line("/proc/sys/kernel/random/boot_id").value_or(""); }

bool has_proc() { return ::access("/proc/self/stat", R_OK) == 0; }

Space shared_memory_file_system() {
  struct statvfs space {};
  if (::statvfs("/dev/shm", &space) != 0) return {};
  return {static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize,
          static_cast<std::uint64_t>(space.f_blocks) * space.f_frsize};
}

std::uint64_t limit_open_files() { return soft_limit(RLIMIT_NOFILE); }
std::uint64_t limit_processes() { return soft_limit(RLIMIT_NPROC); }
std::uint64_t limit_locked_memory() { return soft_limit(RLIMIT_MEMLOCK); }
std::uint64_t limit_address_space() { return soft_limit(RLIMIT_AS); }

bool can_open(int descriptors) {
  const std::uint64_t limit = limit_open_files();
  std::array<pollfd, 1024> numbers;
  for (std::uint64_t first = 0; descriptors > 0 && first < limit; first += numbers.size()) {
    const auto count = std::min<std::uint64_t>(numbers.size(), limit - first);
    for (std::uint64_t i = 0; i < count; ++i) numbers[i] = {static_cast<int>(first + i), 0, 0};
    if (::poll(numbers.data(), count, 0) < 0) return true;  // not to be found out
    for (std::uint64_t i = 0; i < count; ++i) descriptors -= (numbers[i].revents & POLLNVAL) != 0 ? 1 : 0;
  }
  return descriptors <= 0;
}

std::string huge_page_policy_for_shared_memory() {
  // "always within_size advise [never] deny force"
  const auto line = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (!line) return {};
  const std::size_t open = line->find('[');
  const std::size_t close = line->find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return line->substr(open + 1, close - open - 1);
}

}  // namespace tsprun::detail::machine
