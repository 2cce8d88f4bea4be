// A rank that does what a test tells it: `actor ACTION [ARGUMENTS…]`. Started under `tsprun run`, or one by one with the
// environment of another starter. "ready" on stdout says that its first collective is behind it. Here are the actions that work;
// actor/endings.cpp has those that fail.

#include "tests/programs/actor/actor.h"
#include "core/context.h"
#include "transport/posix.h"

#include <algorithm>
#include <arpa/inet.h>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#if defined(TSP_SANITIZE_ADDRESS)
/// Tells LeakSanitizer not to report the few hundred bytes that libpmix never frees.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libpmix.so"; }
#endif

namespace tsprun::detail::test {

namespace {

/// print: a line on each of stdout and stderr, and the last one without an end.
int print(const Arguments&) {
  const char* rank = std::getenv("RANK");
  say(fmt::format("out of {}", rank));
  std::cerr << fmt::format("err of {}", rank) << std::endl;
  std::cout << fmt::format("unended line of {}", rank) << std::flush;
  return 0;
}

/// lines COUNT LENGTH: that many lines, each of one letter that the rank chooses.
int lines(const Arguments& arguments) {
  const char letter = static_cast<char>('a' + std::atoi(std::getenv("RANK")));
  const std::string line(static_cast<std::size_t>(number(arguments, 1, 100)), letter);
  for (int i = 0; i < number(arguments, 0, 1); ++i) std::cout << line << '\n';
  std::cout << std::flush;
  return 0;
}

/// environment: the variables that tsprun promises, and whether MASTER_PORT is free to bind (rank 0).
int environment(const Arguments&) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const char* value = std::getenv(name);
    say(fmt::format("{}={}", name, value != nullptr ? value : "unset"));
  }
  if (std::string(std::getenv("RANK")) != "0") return 0;
  const tsprun::detail::posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
  const bool free = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  say(free ? "MASTER_PORT is free" : "MASTER_PORT is taken");
  return 0;
}

/// stdin: how many lines it has.
int count_stdin(const Arguments&) {
  int count = 0;
  for (std::string line; std::getline(std::cin, line);) ++count;
  say(fmt::format("{} lines of input", count));
  return 0;
}

/// sum [ROUNDS]: collectives of several sizes.
int sum(const Arguments& arguments) {
  tsprun::Context context = join();
  for (int round = 0; round < number(arguments, 0, 3); ++round) {
    for (std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{200'000}}) reduce_ones(context, count);
  }
  say(fmt::format("sum over {} ranks is right on rank {}", context.size(), context.rank()));
  return 0;
}

/// cores: how many the node's ranks are taken to have together.
int cores(const Arguments&) {
  tsprun::Context context = join();
  context.world().barrier();
  say(fmt::format("{} cores for {} ranks", tsprun::detail::job_of(context).cores, context.local_size()));
  return 0;
}

/// store: where this rank finds the job's store.
int store(const Arguments&) {
  tsprun::Context context = join();
  context.world().barrier();
  say(fmt::format("store {}", tsprun::detail::job_of(context).store_address()));
  return 0;
}

/// digest: all collectives on numbers whose sums depend on their order; prints a hash of every bit that this rank got.
int digest(const Arguments&) {
  tsprun::Context context = join();
  tsprun::Communicator& world = context.world();
  const auto ranks = static_cast<std::size_t>(context.size());
  const auto me = static_cast<std::uint64_t>(context.rank());
  std::uint64_t hash = 1469598103934665603U;
  const auto take = [&](const std::vector<float>& data) {
    for (const float value : data) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211U;
  };
  const auto numbers = [&](std::size_t count, std::uint64_t seed) {
    std::vector<float> data(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15U + (me + 1) * 0xbf58476d1ce4e5b9U + seed;
      x = (x ^ (x >> 29)) * 0x94d049bb133111ebU;
      data[i] = static_cast<float>(static_cast<std::int64_t>(x)) * 1e-15F;
    }
    return data;
  };
  for (const std::size_t count : {std::size_t{1}, std::size_t{333}, std::size_t{70'001}}) {
    const std::vector<float> chunk = numbers(count, 1);
    const std::vector<float> whole = numbers(count * ranks, 2);
    std::vector<float> all(count * ranks);
    std::vector<float> one(count);
    world.all_gather(std::span<const float>(chunk), std::span<float>(all));
    take(all);
    world.all_reduce(std::span<const float>(whole), std::span<float>(all), tsprun::Reduction::sum);
    take(all);
    world.reduce_scatter(std::span<const float>(whole), std::span<float>(one), tsprun::Reduction::sum);
    take(one);
    world.all_to_all(std::span<const float>(whole), std::span<float>(all));
    take(all);
    std::vector<float> given = numbers(count, 3);
    world.broadcast(std::span<float>(given), context.size() - 1);
    take(given);
    world.reduce(std::span<const float>(chunk), std::span<float>(one), tsprun::Reduction::sum, 0);
    if (me == 0) take(one);
    const int next = (context.rank() + 1) % context.size();
    const int before = (context.rank() + context.size() - 1) % context.size();
    world.send_recv(std::span<const float>(chunk), next, std::span<float>(one), before);
    take(one);
  }
  world.barrier();
  say(fmt::format("digest {:016x}", hash));
  return 0;
}

/// rail LOCAL KIB: the ranks of that local rank, one a node, pass so much around; the others have nothing to say. Precondition:
/// all nodes have as many ranks.
int rail(const Arguments& arguments) {
  tsprun::Context context = join();
  const int local_size = context.local_size();
  if (context.local_rank() == number(arguments, 0, 0)) {
    const std::size_t bytes = static_cast<std::size_t>(number(arguments, 1, 64)) << 10;
    std::vector<float> out(bytes / sizeof(float), static_cast<float>(context.rank()));
    std::vector<float> in(out.size());
    const int next = (context.rank() + local_size) % context.size();
    const int before = (context.rank() + context.size() - local_size) % context.size();
    context.world().send_recv(std::span<const float>(out), next, std::span<float>(in), before);
    if (in.front() != static_cast<float>(before) || in.back() != static_cast<float>(before))
      throw std::runtime_error("another rank's message arrived");
  }
  for (const tsprun::LinkTraffic& link : context.traffic_by_link()) {
    std::uint64_t sent = 0;
    for (const std::uint64_t bytes : link.counters.sent) sent += bytes;
    say(fmt::format("{} sent {}", link.transport, sent));
  }
  context.world().barrier();
  return 0;
}

}  // namespace

int loop(const Arguments& arguments) {
  tsprun::Context context = join();
  reduce_ones(context, 10);
  if (!arguments.empty() && ::fork() == 0) {
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::close(stream);
    for (;;) ::pause();
  }
  say("ready");
  for (std::size_t i = 0;; ++i) reduce_ones(context, i % 10 == 0 ? 100'000 : 100);
}

namespace {

/// compute SECONDS: rank 0 computes that long, ticking, while the others wait.
int compute(const Arguments& arguments) {
  tsprun::Context context = join();
  if (context.rank() == 0) {
    const std::uint64_t end =
        tsprun::detail::posix::now_ns() + static_cast<std::uint64_t>(number(arguments, 0, 1)) * 1'000'000'000;
    while (tsprun::detail::posix::now_ns() < end) {
      context.tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  context.world().barrier();
  return 0;
}

/// children [WHAT]: forks three children, one of which orphans a grandchild, then loops (or, with WHAT = leave, returns 0).
int children(const Arguments& arguments) {
  for (int i = 0; i < 3; ++i) {
    if (::fork() == 0) {
      if (i == 0 && ::fork() != 0) ::_exit(0);
      // Deaf to what a polite end would be.
      std::signal(SIGTERM, SIG_IGN);
      std::signal(SIGINT, SIG_IGN);
      std::signal(SIGHUP, SIG_IGN);
      for (;;) ::pause();
    }
  }
  if (!arguments.empty() && arguments[0] == "leave") return 0;
  return loop({});
}

/// heap MEBIBYTES: allocates and touches that much of its heap.
int use_heap(const Arguments& arguments) {
  tsprun::Context context = join();
  const tsprun::HeapBlock block =
      context.allocate(static_cast<std::size_t>(number(arguments, 0, 1)) << 20, "what the actor asked for");
  std::fill(block.bytes().begin(), block.bytes().end(), std::byte{1});
  context.world().barrier();
  return 0;
}

/// join_again WHEN: makes a second Context while the first lives ("during") or after it ("after").
int join_again(const Arguments& arguments) {
  std::optional<tsprun::Context> first(join());
  first->world().barrier();
  if (arguments[0] == "after") first.reset();
  try {
    join();
  } catch (const tsprun::Error& error) {
    say(error.what());
  }
  if (first) reduce_ones(*first, 1000);
  return 0;
}

/// start COMMAND…: joins, then runs a command line.
int start_command(const Arguments& arguments) {
  const tsprun::Context context = join();
  return std::system(arguments[0].c_str()) == 0 ? 0 : 1;
}

/// sleep: says ready and sleeps; knows nothing of collectives.
int sleep_for_ever(const Arguments&) {
  say("ready");
  for (;;) ::pause();
}

/// stubborn: as sleep, but ignores what can be ignored.
int stubborn(const Arguments& arguments) {
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  return sleep_for_ever(arguments);
}

}  // namespace

}  // namespace tsprun::detail::test

int main(int argc, char** argv) {
  using namespace tsprun::detail::test;
  Actions actions = {{"print", print},
                     {"lines", lines},
                     {"environment", environment},
                     {"stdin", count_stdin},
                     {"sum", sum},
                     {"cores", cores},
                     {"store", store},
                     {"digest", digest},
                     {"rail", rail},
                     {"loop", loop},
                     {"compute", compute},
                     {"children", children},
                     {"heap", use_heap},
                     {"join_again", join_again},
                     {"start", start_command},
                     {"sleep", sleep_for_ever},
                     {"stubborn", stubborn}};
  actions.merge(endings());
  const Arguments words(argv + 1, argv + argc);
  const auto action = words.empty() ? actions.end() : actions.find(words[0]);
  if (action == actions.end()) {
    std::cerr << "actor: no such action\n";
    return 99;
  }
  return action->second(Arguments(words.begin() + 1, words.end()));
}
