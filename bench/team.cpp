// Pinned, spinning threads: see team.h.
#include "bench/team.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tsprun::detail::bench {

namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  // A refusal only costs steadiness.
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void await(const Flag& flag, std::uint64_t number) {
  while (flag.value.load(std::memory_order_acquire) != number) relax();
}

Team::Team(int size)
    : size_(size),
      arrived_(static_cast<std::size_t>(size)),
      mailboxes_(std::make_unique<Mailbox[]>(static_cast<std::size_t>(size) * static_cast<std::size_t>(size))) {}

void Team::barrier(int thread) {
  Flag& mine = arrived_[static_cast<std::size_t>(thread)];
  const std::uint64_t round = mine.value.load(std::memory_order_relaxed) + 1;
  mine.value.store(round, std::memory_order_release);
  for (const Flag& other : arrived_) {
    while (other.value.load(std::memory_order_acquire) < round) relax();
  }
}

void Team::send(int from, int to, std::span<const double> values) {
  Mailbox& box = mailbox(from, to);
  const std::uint64_t number = box.sent.value.load(std::memory_order_relaxed) + 1;
  box.values = values.data();
  box.sent.value.store(number, std::memory_order_release);
  await(box.taken, number);
}

void Team::receive(int from, int to, std::span<double> values) {
  Mailbox& box = mailbox(from, to);
  const std::uint64_t number = box.taken.value.load(std::memory_order_relaxed) + 1;
  await(box.sent, number);
  std::copy_n(box.values, values.size(), values.data());
  box.taken.value.store(number, std::memory_order_release);
}

void Team::flag_pingpong(int thread, std::uint64_t trips) {
  if (thread > 1) return;
  std::uint64_t& played = trips_[thread];
  for (std::uint64_t i = 0; i < trips; ++i) {
    ++played;
    if (thread == 0) ball_[0].value.store(played, std::memory_order_release);
    await(ball_[1 - thread], played);
    if (thread == 1) ball_[1].value.store(played, std::memory_order_release);
  }
}

void Team::run(const std::function<void(int)>& body) {
  const std::vector<int> cpus = allowed_cpus();
  std::vector<std::jthread> threads;
  for (int thread = 1; thread < size_; ++thread) {
    threads.emplace_back([&body, &cpus, thread] {
      pin(cpus[static_cast<std::size_t>(thread) % cpus.size()]);
      body(thread);
    });
  }
  pin(cpus[0]);
  body(0);
}

}  // namespace tsprun::detail::bench
