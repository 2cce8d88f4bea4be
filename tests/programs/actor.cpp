// A rank that does what a test tells it: `actor ACTION [ARGUMENTS…]`. Started under `tsprun run`, or one by one with the
// environment of another starter. "ready" on stdout says that its first collective is behind it.

#include "core/context.h"
#include "tests/programs/folder_store.h"
#include "transport/posix.h"
#include "tsprun/tsprun.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <netinet/in.h>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Arguments = std::vector<std::string>;

int number(const Arguments& arguments, std::size_t index, int otherwise) {
  return index < arguments.size() ? std::stoi(arguments[index]) : otherwise;
}

void say(const std::string& line) { std::cout << line << std::endl; }

/// Joins as the starter says or, where ACTOR_STORE names a folder, through that, as rank RANK of WORLD_SIZE.
tsprun::Context join() {
  const char* const folder = std::getenv("ACTOR_STORE");
  if (folder == nullptr) return tsprun::Context::from_environment();
  tsprun::detail::test::FolderStore store(folder);
  return tsprun::Context::join(std::stoi(std::getenv("RANK")), std::stoi(std::getenv("WORLD_SIZE")), store);
}

/// all_reduce of ones; throws if the sum isn't the number of ranks.
void reduce_ones(tsprun::Context& context, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  context.world().all_reduce(tsprun::Buffer(std::span<float>(data)), tsprun::Reduction::sum);
  for (float value : data) {
    if (value != static_cast<float>(context.size()))
      throw std::runtime_error(fmt::format("a sum of {} ones is {}", context.size(), value));
  }
}

/// Leaves a mark of the moment, for tests that measure what follows it.
void note_time(const std::string& file) {
  if (!file.empty()) std::ofstream(file) << tsprun::detail::posix::now_ns() << std::endl;
}

/// Ends this process, or its ability to go on, in the given way.
void fail(const std::string& how) {
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "segv") {
    // Sanitizers have a handler of their own.
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "exit3") std::exit(3);
  if (how == "quick_exit0") std::_Exit(0);
  if (how == "throw") throw std::runtime_error("the actor was told to throw");
  if (how == "abort") std::abort();
}

// --- actions -----------------------------------------------------------------------------------------------------------------

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

/// loop [forked]: all_reduces for ever; if `forked` is given, a forked child lives on, as a DataLoader's worker does.
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

/// fail HOW RANK AFTER [FILE]: all_reduces without end; that rank fails in the middle of number AFTER+1, noting when in FILE.
int fail_in_operation(const Arguments& arguments) {
  tsprun::Context context = join();
  const std::string& how = arguments.at(0);
  const int rank = number(arguments, 1, 0);
  const int after = number(arguments, 2, 5);
  for (int i = 0; i < after; ++i) reduce_ones(context, 1000);
  if (context.rank() != rank) {
    for (;;) reduce_ones(context, 1'000'000);
  }
  std::vector<float> data(1'000'000, 1.0F);
  tsprun::Work work =
      context.world().post_all_reduce(std::span<const float>(data), std::span<float>(data), tsprun::Reduction::sum);
  // The others are in it by now, for it can't be over without this rank.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  note_time(arguments.size() > 3 ? arguments[3] : "");
  fail(how);
  work.wait();
  for (;;) reduce_ones(context, 1'000'000);
}

/// fail_outside HOW RANK [BUSY]: that rank fails between operations while the others wait for it in a barrier; but rank BUSY
/// computes.
int fail_outside(const Arguments& arguments) {
  tsprun::Context context = join();
  reduce_ones(context, 10);
  if (context.rank() == number(arguments, 1, 0)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    fail(arguments.at(0));
  }
  while (context.rank() == number(arguments, 2, -1)) {
    context.tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  context.world().barrier();
  return 0;
}

/// leave_badly RANK CODE: that rank closes its context while the others wait for it, and its process ends a moment later, with
/// that code, as that of a program whose exception nobody caught.
int leave_badly(const Arguments& arguments) {
  std::optional<tsprun::Context> context(join());
  context->world().barrier();
  if (context->rank() == number(arguments, 0, 1)) {
    context.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return number(arguments, 1, 3);
  }
  context->world().barrier();
  return 0;
}

/// close_in_child: a forked child of each rank destroys its copy of the context; the ranks go on.
int close_in_child(const Arguments&) {
  std::optional<tsprun::Context> context(join());
  reduce_ones(*context, 100'000);
  const pid_t child = ::fork();
  if (child == 0) {
    context.reset();
    ::_exit(0);
  }
  int status = -1;
  if (::waitpid(child, &status, 0) != child || status != 0) throw std::runtime_error("the child ended badly");
  context->world().barrier();
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{200'000}}) reduce_ones(*context, count);
  say(fmt::format("rank {} went on", context->rank()));
  return 0;
}

/// leave_late: rank 0 leaves, the others a moment later; they print the milliseconds that it takes them.
int leave_late(const Arguments&) {
  std::optional<tsprun::Context> context(join());
  context->world().barrier();
  const int rank = context->rank();
  if (rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  context.reset();
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  say(fmt::format("rank {} left in {} ms", rank, took.count()));
  return 0;
}

/// leave_early: rank 0 leaves its job while the others go on among themselves, until the last of them is killed.
int leave_early(const Arguments&) {
  tsprun::Context context = join();
  context.world().barrier();
  if (context.rank() == 0) return 0;
  std::vector<int> others;
  for (int rank = 1; rank < context.size(); ++rank) others.push_back(rank);
  tsprun::Communicator group = context.world().subgroup(others);
  for (int i = 0;; ++i) {
    group.barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (i == 50 && context.rank() == context.size() - 1) fail("kill");
  }
}

/// deadlock: ranks 0 and 1 receive from each other, the rest wait in a barrier.
int deadlock(const Arguments&) {
  tsprun::Context context = join();
  std::array<float, 4> data{};
  if (context.rank() < 2) context.world().recv(std::span<float>(data), 1 - context.rank());
  context.world().barrier();
  return 0;
}

/// stop_chain: ranks 0 and 2 wait for rank 1, which waits for rank 3, which stops itself.
int stop_chain(const Arguments&) {
  tsprun::Context context = join();
  context.world().barrier();
  float value = 0;
  if (context.rank() == 3) std::raise(SIGSTOP);
  context.world().recv(tsprun::Buffer(&value, sizeof value, tsprun::DType::byte), context.rank() == 1 ? 3 : 1);
  return 0;
}

/// stop_in_barrier RANK: that rank is stopped in a barrier in which it waits for the others; they come a moment later, and wait
/// for it in that barrier or the next.
int stop_in_barrier(const Arguments& arguments) {
  tsprun::Context context = join();
  context.world().barrier();
  const auto moment = std::chrono::milliseconds(200);
  if (context.rank() == number(arguments, 0, 0)) {
    std::thread([moment] {
      std::this_thread::sleep_for(moment);
      ::kill(::getpid(), SIGSTOP);
    }).detach();
  } else {
    std::this_thread::sleep_for(2 * moment);
  }
  for (;;) context.world().barrier();
}

/// stop_before_joining RANK: that rank is stopped before it joins; the others connect, which takes all of them.
int stop_before_joining(const Arguments& arguments) {
  if (std::atoi(std::getenv("RANK")) == number(arguments, 0, 0)) std::raise(SIGSTOP);
  return loop({});
}

/// mismatch: rank 1 gathers where the others reduce.
int mismatch(const Arguments&) {
  tsprun::Context context = join();
  if (context.rank() == 1) {
    const std::vector<float> own(1, 1.0F);
    std::vector<float> gathered(static_cast<std::size_t>(context.size()));
    context.world().all_gather(std::span<const float>(own), std::span<float>(gathered));
  } else {
    reduce_ones(context, 1);
  }
  context.world().barrier();
  return 0;
}

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

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(const Arguments&)>> actions = {{"print", print},
                                                                               {"lines", lines},
                                                                               {"environment", environment},
                                                                               {"stdin", count_stdin},
                                                                               {"sum", sum},
                                                                               {"cores", cores},
                                                                               {"store", store},
                                                                               {"digest", digest},
                                                                               {"rail", rail},
                                                                               {"loop", loop},
                                                                               {"fail", fail_in_operation},
                                                                               {"fail_outside", fail_outside},
                                                                               {"leave_badly", leave_badly},
                                                                               {"leave_early", leave_early},
                                                                               {"close_in_child", close_in_child},
                                                                               {"leave_late", leave_late},
                                                                               {"deadlock", deadlock},
                                                                               {"mismatch", mismatch},
                                                                               {"stop_chain", stop_chain},
                                                                               {"stop_in_barrier", stop_in_barrier},
                                                                               {"stop_before_joining", stop_before_joining},
                                                                               {"compute", compute},
                                                                               {"children", children},
                                                                               {"heap", use_heap},
                                                                               {"join_again", join_again},
                                                                               {"start", start_command},
                                                                               {"sleep", sleep_for_ever},
                                                                               {"stubborn", stubborn}};
  const Arguments words(argv + 1, argv + argc);
  const auto action = words.empty() ? actions.end() : actions.find(words[0]);
  if (action == actions.end()) {
    std::cerr << "actor: no such action\n";
    return 99;
  }
  return action->second(Arguments(words.begin() + 1, words.end()));
}
