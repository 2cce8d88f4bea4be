// Runs the protocols of shared memory under Relacy, which tries orders of memory accesses that a processor with weaker rules than
// x86's may choose. What is checked is the code that ranks run (transport/doorbell.h, transport/shm/lane.h, core/board/), with
// other atomics. Each protocol is also run with weaker orders, and must fail then: else the check would see nothing.
#include "core/board/failure_record.h"
#include "core/board/page_copy.h"
#include "transport/doorbell.h"
#include "transport/shm/lane.h"

#include <array>
#include <iostream>
#include <ostream>
#include <span>
#include <streambuf>
#include <string_view>

#include "tests/memory_order/checked_atomics.h"

namespace tsprun::detail::test {
namespace {

/// Sleeps on a bell until ready(), as the engine's wait loop does. Its sleep ends only when the bell was rung: a sleep of which
/// the ring was lost is an endless one, which Relacy reports.
template <class Bell, class Ready>
void sleep_until(Bell& bell, const Ready& ready) {
  while (!ready()) {
    bell.arm();
    if (!ready()) {
      while (bell.is_armed()) rl::yield(1, RL_INFO);
    }
    bell.disarm();
  }
}

/// A lane of two places, and both ends' bells: messages are whole when they are seen, no place is used again too early, and
/// nobody sleeps for ever.
template <class Orders>
struct Lane : rl::test_suite<Lane<Orders>, 2> {
  using Atomics = CheckedAtomics<Orders>;
  static constexpr std::uint64_t kMessages = 4;
  static constexpr std::uint64_t kPlaces = 2;

  shm::BasicSlotHead<Atomics> slots[kPlaces];
  shm::BasicCredits<Atomics> credits;
  BasicBell<Atomics> sender;
  BasicBell<Atomics> receiver;

  void thread(unsigned index) {
    for (std::uint64_t t = 1; t <= kMessages; ++t) {
      shm::BasicSlotHead<Atomics>& slot = slots[t % kPlaces];
      if (index == 0) {
        sleep_until(sender, [&] { return t - credits.given_back() <= kPlaces; });
        slot.bytes = 10 * t;
        slot.kind = shm::SlotKind::in_slot;
        slot.publish(t);
        receiver.claim();
      } else {
        sleep_until(receiver, [&] { return slot.shown() == t; });
        RL_ASSERT(slot.bytes == 10 * t);
        RL_ASSERT(slot.kind == shm::SlotKind::in_slot);
        credits.give_back(t);
        sender.claim();
      }
    }
  }
};

/// The job's first failure: two ranks write one, a launcher corrects it, and a rank that sleeps learns that there is one. Whoever
/// reads it sees all of one failure.
template <class Orders>
struct Failures : rl::test_suite<Failures<Orders>, 3> {
  using Record = BasicRecord<CheckedAtomics<Orders>, 1, 2>;
  Record record;
  BasicBell<CheckedAtomics<Orders>> bell;

  static typename Record::Words words(std::uint32_t value) { return {.numbers = {value}, .text = {value, value}}; }

  void thread(unsigned index) {
    if (index < 2) {
      const std::uint32_t mine = 1 + index;
      if (record.write(words(mine))) bell.claim();
      if (index == 0) record.correct(words(9));
      return;
    }
    sleep_until(bell, [&] { return record.begun(); });
    for (int look = 0; look < 2; ++look) {
      const auto seen = record.read();
      if (!seen) continue;
      RL_ASSERT(seen->numbers[0] != 0);
      RL_ASSERT(seen->text[0] == seen->numbers[0] && seen->text[1] == seen->numbers[0]);
    }
  }
};

/// A page whose first word says whether the second counts, its copy, and who reads that.
template <class Orders>
struct Copies : rl::test_suite<Copies<Orders>, 3> {
  using Word = typename CheckedAtomics<Orders>::template Atomic<std::uint64_t>;
  Word page[2];
  Word copy[2];

  void thread(unsigned index) {
    if (index == 0) {
      page[1].store(7, std::memory_order_relaxed);
      page[0].store(1, std::memory_order_release);
    } else if (index == 1) {
      for (int round = 0; round < 2; ++round) {
        std::array<std::uint64_t, 2> words{};
        take_words<Word>(page, words);
        put_words<Word>(words, copy);
      }
    } else if (copy[0].load(std::memory_order_acquire) == 1) {
      RL_ASSERT(copy[1].load(std::memory_order_relaxed) == 7);
    }
  }
};

/// Text of a fixed size: Relacy has its own operator new, whose memory the library's string streams would give back to another.
class Report : public std::streambuf {
 public:
  Report() { setp(text_.data(), text_.data() + text_.size()); }
  std::string_view text() const { return {pbase(), pptr()}; }

 private:
  std::array<char, 20'000> text_;
};

/// Runs a protocol under both of Relacy's schedulers that end in a short time; returns whether every run was right.
template <class Protocol>
bool is_right(std::ostream& report) {
  for (const rl::scheduler_type_e scheduler : {rl::sched_random, rl::sched_bound}) {
    rl::test_params params;
    params.search_type = scheduler;
    params.iteration_count = 30'000;
    params.context_bound = 2;
    params.execution_depth_limit = 4000;
    params.output_stream = &report;
    params.progress_stream = &report;
    rl::simulate<Protocol>(params);
    if (params.test_result != rl::test_result_success) {
      report << rl::test_result_str(params.test_result) << "\n";
      return false;
    }
  }
  return true;
}

int failures = 0;

template <template <class> class Protocol, class Weaker>
void check(const char* name) {
  Report report;
  std::ostream out(&report);
  if (!is_right<Protocol<AsWritten>>(out)) {
    std::cout << name << " is wrong:\n" << report.text();
    ++failures;
  }
  std::ostream nowhere(nullptr);
  if (is_right<Protocol<Weaker>>(nowhere)) {
    std::cout << name << ": the check finds nothing where the orders are weaker\n";
    ++failures;
  }
}

}  // namespace
}  // namespace tsprun::detail::test

int main() {
  using namespace tsprun::detail::test;
  check<Lane, AcquireLooks>("a lane whose ends look with acquire before they sleep");
  check<Lane, Relaxed>("a lane");
  check<Failures, AcquireLooks>("a failure for which a rank looks with acquire before it sleeps");
  check<Failures, Relaxed>("a failure");
  check<Copies, Relaxed>("a copied page");
  std::cout << (failures == 0 ? "ok\n" : "failed\n");
  return failures == 0 ? 0 : 1;
}
