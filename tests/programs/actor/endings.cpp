// Actions of the actor whose rank fails, leaves while others go on, or waits in vain.
#include "core/context.h"
#include "tests/programs/actor/actor.h"
#include "transport/posix.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test {

namespace {

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

/// Waits until the flight board shows what is awaited, for at most 20 s. Gives signs of life meanwhile, but moves no message on.
void await(const tsprun::Context& context, const std::string& what, const std::function<bool(const FlightBoard&)>& shows) {
  const FlightBoard& board = board_of(context);
  for (const std::uint64_t ends = posix::now_ns() + 20'000'000'000; !shows(board);) {
    if (posix::now_ns() >= ends) throw std::runtime_error(fmt::format("rank {} awaited in vain: {}", context.rank(), what));
    board.page(context.rank()).count_sign();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Whether that rank waits in such an operation, which is its `sequence`th of the kind.
bool waits_in(const FlightBoard& board, int rank, Op op, std::uint32_t sequence) {
  const std::optional<Activity> seen = board.activity(rank);
  return seen && seen->op == op && seen->sequence == sequence && seen->waiting_for >= 0;
}

/// Whether all ranks but these wait in such an operation.
bool all_wait_in(const FlightBoard& board, const std::vector<int>& but, Op op, std::uint32_t sequence) {
  for (int rank = 0; rank < board.ranks(); ++rank) {
    if (std::ranges::count(but, rank) == 0 && !waits_in(board, rank, op, sequence)) return false;
  }
  return true;
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
  // It can't be over without this rank, which does nothing for it meanwhile.
  await(context, "all others wait in the same operation", [&](const FlightBoard& board) {
    return all_wait_in(board, {rank}, Op::all_reduce, static_cast<std::uint32_t>(after) + 1);
  });
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
  const int busy = number(arguments, 2, -1);
  if (context.rank() == number(arguments, 1, 0)) {
    await(context, "all others wait in the barrier, or compute", [&](const FlightBoard& board) {
      return all_wait_in(board, {context.rank(), busy}, Op::barrier, 1) && (busy < 0 || !board.activity(busy));
    });
    fail(arguments.at(0));
  }
  while (context.rank() == busy) {
    context.tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  context.world().barrier();
  return 0;
}

/// leave_badly RANK CODE [MS]: that rank closes its context while the others wait for it, and its process ends a moment later,
/// with that code, as that of a program whose exception nobody caught.
int leave_badly(const Arguments& arguments) {
  std::optional<tsprun::Context> context(join());
  context->world().barrier();
  if (context->rank() == number(arguments, 0, 1)) {
    context.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(number(arguments, 2, 400)));
    return number(arguments, 1, 3);
  }
  context->world().barrier();
  return 0;
}

/// save_together: sums until SIGTERM comes to any rank; then all sum for half a second more, say so, and leave.
int save_together(const Arguments&) {
  static volatile std::sig_atomic_t asked = 0;
  std::signal(SIGTERM, [](int) { asked = 1; });
  tsprun::Context context = join();
  context.world().barrier();
  say("ready");
  for (float any = 0; any == 0; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    any = static_cast<float>(asked);
    context.world().all_reduce(std::span<float>(&any, 1), tsprun::Reduction::max);
  }
  for (int i = 0; i < 10; ++i) {
    reduce_ones(context, 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  say(fmt::format("saved with {} ranks", context.size()));
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

/// stop_in_barrier RANK: the others stop that rank in a barrier in which it waits for them, and then wait for it in that barrier
/// or the next. Precondition: all ranks are on one machine.
int stop_in_barrier(const Arguments& arguments) {
  tsprun::Context context = join();
  context.world().barrier();
  const int rank = number(arguments, 0, 0);
  if (context.rank() != rank) {
    const auto process = [rank](const FlightBoard& board) { return static_cast<pid_t>(board.pid(rank)); };
    await(context, "the rank waits in the barrier",
          [&](const FlightBoard& board) { return process(board) > 0 && waits_in(board, rank, Op::barrier, 2); });
    ::kill(process(board_of(context)), SIGSTOP);
    await(context, "the rank is stopped", [&](const FlightBoard& board) { return posix::is_stopped(process(board)); });
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

}  // namespace

Actions endings() {
  return {{"fail", fail_in_operation},
          {"fail_outside", fail_outside},
          {"leave_badly", leave_badly},
          {"leave_early", leave_early},
          {"save_together", save_together},
          {"close_in_child", close_in_child},
          {"leave_late", leave_late},
          {"deadlock", deadlock},
          {"mismatch", mismatch},
          {"stop_chain", stop_chain},
          {"stop_in_barrier", stop_in_barrier},
          {"stop_before_joining", stop_before_joining}};
}

}  // namespace tsprun::detail::test
