// A program's trace: what it records, and when it is refused.
#include "tsprun/trace.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test::trace_test {

namespace {

/// Returns the operations and spans in the order of their ends. Whether there are waits depends on who comes first.
std::vector<TraceEvent> without_waits(const Trace& trace) {
  std::vector<TraceEvent> events = trace.events();
  std::erase_if(events, [](const TraceEvent& event) { return event.name == "wait"; });
  return events;
}

std::vector<std::string> names(const Trace& trace) {
  std::vector<std::string> all;
  for (const TraceEvent& event : without_waits(trace)) all.emplace_back(event.name);
  return all;
}

}  // namespace

TEST(ProgramTrace, RecordsOperationsSmallMessagesAndSpansInTheOrderOfTheirEnds) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    Trace trace(context);
    std::array<double, 3> data{};
    const std::span<double> span(data);
    {
      const TraceSpan step(trace, "step", 7);
      world.all_reduce(span, Reduction::sum, {.stream = Stream::kv, .purpose = Purpose::kv});
      const TraceSpan inner(trace, "exchange");
      if (world.rank() == 0) world.send(span, 1);
      else world.recv(span, 0);
    }
    const std::string message = world.rank() == 0 ? "send" : "recv";
    ASSERT_EQ(names(trace), (std::vector<std::string>{"all_reduce", message, "exchange", "step"}));

    const std::vector<TraceEvent> events = without_waits(trace);
    const TraceEvent& sum = events[0];
    EXPECT_EQ(sum.op, Op::all_reduce);
    EXPECT_EQ(sum.bytes, 3 * sizeof(double));
    EXPECT_EQ(sum.row, 1 + static_cast<int>(Stream::kv));
    EXPECT_EQ(sum.purpose, Purpose::kv);
    EXPECT_EQ(events[1].peer, 1 - world.rank());
    const TraceEvent& inner = events[2];
    const TraceEvent& step = events[3];
    EXPECT_FALSE(step.op);
    EXPECT_EQ(step.row, TraceEvent::kSpans);
    EXPECT_EQ(step.number, 7);
    EXPECT_EQ(inner.number, -1);
    EXPECT_LE(step.begin_ns, sum.begin_ns);
    EXPECT_LE(sum.end_ns, inner.begin_ns);
    EXPECT_LE(inner.begin_ns, events[1].begin_ns);
    EXPECT_LE(events[1].end_ns, inner.end_ns);
    EXPECT_LE(inner.end_ns, step.end_ns);

    trace.clear();
    EXPECT_TRUE(trace.events().empty());
    EXPECT_EQ(trace.left_out(), 0U);
  });
}

TEST(ProgramTrace, IsOneAtATimeAndBeginsBetweenOperations) {
  run_ranks(2, [](Context& context) {
    {
      const Trace first(context);
      EXPECT_THROW(Trace{context}, Error);
    }
    std::array<float, 1> data{};
    const std::span<float> span(data);
    Work work;
    if (context.rank() == 0) {
      // Rank 1 sends only after the barrier, so this is pending for sure.
      work = context.world().post_recv(span, 1, {.stream = Stream::weights});
      EXPECT_FALSE(work.test());
      EXPECT_THROW(Trace{context}, Error);
    }
    context.world().barrier();
    if (context.rank() == 1) context.world().send(span, 0, {.stream = Stream::weights});
    work.wait();
    const Trace second(context);
    context.world().barrier();
    EXPECT_EQ(names(second), std::vector<std::string>{"barrier"});
  });
}

}  // namespace tsprun::detail::test::trace_test
