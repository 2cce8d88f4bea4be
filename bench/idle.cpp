// Measures what ranks cost that only wait: n processes, of which 1 … n−1 wait in a barrier for rank 0, which sleeps. The parent
// reads each process's CPU clock from 10 ms after the wait began until shortly before it ends.
//
//   idle [-n RANKS] [--seconds S] [--json FILE]       exit code 1 if a waiting rank used 2% of a core or more
#include "core/context.h"
#include "transport/machine.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr double kBarShare = 0.02;
constexpr auto kSettle = std::chrono::milliseconds(10);
constexpr auto kMargin = std::chrono::milliseconds(200);

struct IdleOptions {
  int ranks = 8;
  double seconds = 5;
  std::string json;
};

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// CPU seconds that a living process has used.
double cpu_seconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  const int error = clock_getcpuclockid(process, &clock);
  if (error != 0 || clock_gettime(clock, &used) != 0) {
    throw std::runtime_error("the CPU clock of process " + std::to_string(process) + " can't be read: did the rank fail?");
  }
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

/// A rank: says through the pipe that all ranks are there, then waits or lets wait.
int be_rank(tsprun::detail::shm::NodeMemory& memory, int rank, int ready, double seconds) {
  tsprun::Context context = tsprun::detail::join(&memory, rank);
  context.world().barrier();
  if (rank == 0) {
    const char mark = 1;
    if (write(ready, &mark, 1) != 1) return 1;
    sleep_for(seconds);
  }
  context.world().barrier();
  return 0;
}

/// Kills what still runs when the parent gives up.
struct Children {
  std::vector<pid_t> processes;
  ~Children() {
    for (const pid_t process : processes) kill(process, SIGKILL);
    wait_all();
  }
  bool wait_all() {
    bool good = true;
    for (const pid_t process : processes) {
      int status = 0;
      waitpid(process, &status, 0);
      good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    processes.clear();
    return good;
  }
};

pid_t start_rank(tsprun::detail::shm::NodeMemory& memory, int rank, int ready, double seconds) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  int code = 1;
  try {
    code = be_rank(memory, rank, ready, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "idle: rank %d: %s\n", rank, error.what());
  }
  _exit(code);
}

/// Shares of a core that each rank used while it waited; rank 0's is that of a plain sleep.
std::vector<double> measure(const IdleOptions& options) {
  const auto ranks = static_cast<std::uint32_t>(options.ranks);
  tsprun::detail::shm::NodeMemory memory = tsprun::detail::shm::NodeMemory::create_memfd(
      {.local_ranks = ranks, .heap_bytes = std::uint64_t{64} << 20, .world_size = ranks});
  tsprun::detail::bootstrap::describe_job(
      memory, {.cores = static_cast<std::uint32_t>(tsprun::detail::machine::usable_cores()), .timeout_ns = 120'000'000'000});

  int ready[2];
  if (pipe(ready) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  Children children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    children.processes.push_back(start_rank(memory, rank, ready[1], options.seconds));
  }
  close(ready[1]);
  char mark = 0;
  const bool started = read(ready[0], &mark, 1) == 1;
  close(ready[0]);
  if (!started) throw std::runtime_error("the ranks ended before they had met");

  std::this_thread::sleep_for(kSettle);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<double> used;
  for (const pid_t process : children.processes) used.push_back(-cpu_seconds(process));
  sleep_for(options.seconds - std::chrono::duration<double>(kSettle + kMargin).count());
  for (std::size_t rank = 0; rank < used.size(); ++rank) used[rank] += cpu_seconds(children.processes[rank]);
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!children.wait_all()) throw std::runtime_error("a rank failed");
  for (double& share : used) share /= waited;
  return used;
}

int report(const IdleOptions& options, const std::vector<double>& shares) {
  std::printf("# idle: %d ranks, rank 0 sleeps, the others wait in a barrier for it\n# rank   %% of a core\n", options.ranks);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  double worst = 0;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    std::printf("%6zu %13.3f\n", rank, shares[rank] * 100);
    rows.push_back({{"rank", rank}, {"waits", rank != 0}, {"core_share", shares[rank]}});
    if (rank != 0) worst = std::max(worst, shares[rank]);
  }
  std::printf("# worst waiting rank: %.3f%% of a core; the bar is %.0f%%\n", worst * 100, kBarShare * 100);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::ordered_json{{"idle", rows}, {"worst", worst}, {"bar", kBarShare}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("--json " + options.json + ": can't be written");
  }
  return worst < kBarShare ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("CPU that waiting ranks use");
  IdleOptions options;
  app.add_option("-n,--ranks", options.ranks, "ranks")
      ->check(CLI::Range(2, tsprun::detail::shm::kMaxLocalRanks))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "how long rank 0 sleeps")->check(CLI::Range(0.5, 60.0))->capture_default_str();
  app.add_option("--json", options.json, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    return report(options, measure(options));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "idle: %s\n", error.what());
    return 2;
  }
}
