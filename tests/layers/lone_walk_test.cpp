// Steps as one rank's program tells them: what overlaps, what operations take, and how far that is from a step that is played.
#include "layers/theory/lone_walk.h"

#include "core/collectives/registry.h"
#include "layers/io/config.h"
#include "layers/theory/call_price.h"
#include "layers/theory/search.h"
#include "layers/theory/simulate.h"
#include "tests/layers/machine_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::theory::lone_walk_test {
namespace {

/// Four GPUs a node, each pair on a link of 1e9 bytes/s; half a NIC of 5e8 bytes/s each.
Machine machine() { return parse_machine(test_machine::kText, "m.json"); }

ProgramCall call(Op op, std::uint64_t received_by_all) {
  ProgramCall made{};
  made.op = op;
  made.group = 1;
  made.received_by_all = received_by_all;
  return made;
}

/// A program of kernels of a second and all_gathers among four ranks of a node, for 0.6 seconds each.
class Walked {
 public:
  Walked() {
    program_.costs = {{.kernel = "copy", .bytes_read = 100'000'000'000}};
    program_.calls = {call(Op::all_gather, 4 * 1'800'000'000ULL)};
    program_.groups[1] = {0, 1, 2, 3};
  }
  Walked& kernel() { return add({.kind = ItemKind::kernel}); }
  Walked& post(std::uint8_t stream, std::uint64_t number) {
    return add({.kind = ItemKind::post, .stream = stream, .amount = number});
  }
  Walked& wait(std::uint8_t stream, std::uint64_t number) {
    return add({.kind = ItemKind::wait, .stream = stream, .amount = number});
  }
  StepTime on(const Machine& machine) const { return walk(program_, machine, {}); }

 private:
  Walked& add(const ProgramItem& item) {
    program_.items.push_back(item);
    return *this;
  }
  Program program_;
};

TEST(LoneWalk, HidesWhatIsPostedAhead) {
  const StepTime ahead = Walked().post(0, 1).kernel().wait(0, 1).on(machine());
  EXPECT_DOUBLE_EQ(ahead.seconds, 1);
  EXPECT_DOUBLE_EQ(ahead.exposed, 0);
  EXPECT_EQ(ahead.binds, Resource::memory);
  const StepTime late = Walked().kernel().post(0, 1).wait(0, 1).on(machine());
  EXPECT_DOUBLE_EQ(late.seconds, 1.6);
  EXPECT_DOUBLE_EQ(late.exposed, 0.6);
  // What nobody waits for moves in the step, too.
  EXPECT_DOUBLE_EQ(Walked().kernel().post(0, 1).on(machine()).seconds, 1.6);
  // What was posted before the program is there.
  EXPECT_DOUBLE_EQ(Walked().wait(0, 0).kernel().on(machine()).seconds, 1);
  EXPECT_THROW(Walked().post(0, 1).wait(0, 2).on(machine()), Error);
}

TEST(LoneWalk, LinksCarryOneOperationAfterAnother) {
  EXPECT_DOUBLE_EQ(Walked().post(0, 1).post(0, 2).wait(0, 1).on(machine()).seconds, 1.2);
  const StepTime two = Walked().post(0, 1).post(1, 1).kernel().wait(0, 1).wait(1, 1).on(machine());
  EXPECT_DOUBLE_EQ(two.seconds, 1.2);
  EXPECT_DOUBLE_EQ(two.busy[static_cast<std::size_t>(Resource::within_node)], 1.2);
  EXPECT_EQ(two.binds, Resource::within_node);
  // While one stream's operation shares the links with the first of two of another stream, each has half of them.
  EXPECT_DOUBLE_EQ(Walked().post(0, 1).post(0, 2).post(1, 1).wait(1, 1).kernel().on(machine()).seconds, 2.2);
}

TEST(LoneWalk, KernelsTakeLongerWhileMessagesMove) {
  Machine slow = machine();
  slow.copies_slow_kernels = 1.5;
  // In 0.6 seconds 0.4 of the kernel's are done.
  const StepTime time = Walked().post(0, 1).kernel().wait(0, 1).on(slow);
  EXPECT_DOUBLE_EQ(time.seconds, 1.2);
  EXPECT_NEAR(time.exposed, 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(Walked().kernel().post(0, 1).wait(0, 1).on(slow).seconds, 1.6);
}

TEST(CallPrices, FollowFromBytesAndSeats) {
  Machine of = machine();
  const std::vector<int> node = {0, 1, 2, 3};
  const std::vector<int> two_nodes = {0, 1, 4, 5};
  const std::vector<int> rail = {0, 4};
  const std::vector<int> uneven = {0, 1, 2, 4};
  constexpr std::uint64_t kEach = 3'000'000'000;  // bytes that a rank receives
  const auto price = [&](Op op, const std::vector<int>& members) {
    return call_price(call(op, kEach * members.size()), members, of);
  };
  // Three links side by side; two, of a switch's one port.
  EXPECT_DOUBLE_EQ(price(Op::all_gather, node).within, 1);
  EXPECT_EQ(price(Op::all_gather, node).across, 0);
  EXPECT_DOUBLE_EQ(price(Op::send_recv, node).within, 3);
  // Of three parts one crosses nodes, by half a NIC; half of what moves within a node then comes when all has crossed.
  EXPECT_DOUBLE_EQ(price(Op::all_gather, two_nodes).within, 1);
  EXPECT_DOUBLE_EQ(price(Op::all_gather, two_nodes).after, 1);
  EXPECT_DOUBLE_EQ(price(Op::all_gather, two_nodes).across, 4);
  EXPECT_FALSE(price(Op::all_gather, two_nodes).ordered);
  EXPECT_TRUE(price(Op::reduce_scatter, two_nodes).ordered);
  EXPECT_EQ(price(Op::reduce_scatter, two_nodes).after, 0);
  EXPECT_DOUBLE_EQ(price(Op::all_reduce, two_nodes).within, price(Op::all_reduce, two_nodes).after);
  EXPECT_DOUBLE_EQ(price(Op::all_reduce, rail).across, 12);
  EXPECT_EQ(price(Op::all_reduce, rail).within, 0);
  // Two of three parts leave the node, half of them to another rail.
  EXPECT_DOUBLE_EQ(price(Op::all_to_all, two_nodes).across, 8 * (0.5 + 0.5 * 2));
  EXPECT_DOUBLE_EQ(price(Op::send_recv, two_nodes).across, 24);
  EXPECT_DOUBLE_EQ(price(Op::all_reduce, uneven).across, 24);
  // A root sends a buffer of 4e9 bytes, half of it along each rail.
  EXPECT_DOUBLE_EQ(price(Op::broadcast, node).within, 4);
  EXPECT_DOUBLE_EQ(price(Op::broadcast, two_nodes).across, 8);
  EXPECT_DOUBLE_EQ(price(Op::reduce, two_nodes).across, 32);
  of.fabric = Fabric::on_switch;
  EXPECT_DOUBLE_EQ(price(Op::all_gather, node).within, 3);
  EXPECT_DOUBLE_EQ(price(Op::broadcast, node).within, 12);
  EXPECT_EQ(price(Op::all_gather, {3}).within, 0);
}

TEST(CallPrices, OfSumsAcrossNodesHaveALatencyForEachHopOfAPiece) {
  Machine of = machine();
  of.nic_latency = 7;
  ProgramCall sum = call(Op::reduce_scatter, 2 << 20);  // a MiB to each of two ranks: four pieces
  const auto across = [&](const std::vector<int>& members) { return call_price(sum, members, of).across; };
  constexpr double kMoved = (1 << 20) / 2.5e8;
  EXPECT_DOUBLE_EQ(across({0, 4}), kMoved + 4 * 7);
  sum.arguments.send.dtype = DType::bf16;  // summed in f32
  EXPECT_DOUBLE_EQ(across({0, 4}), 2 * kMoved + 8 * 7);
  sum.op = Op::all_reduce;  // half of the bytes are sums
  EXPECT_DOUBLE_EQ(across({0, 4}), 1.5 * kMoved + 2 * 4 * 7);
  sum.received_by_all = 3;  // a piece goes twice round a ring of three
  EXPECT_NEAR(across({0, 4, 8}), 4 * 7, 1e-7);
  EXPECT_EQ(call_price(call(Op::all_gather, 3), {0, 4, 8}, of).delay, 2 * 7);
  sum.algorithm = tree_all_reduce;  // three steps each way among five
  EXPECT_NEAR(across({0, 4, 8, 12, 16}), 2 * 3 * 7, 1e-7);
}

// In a played step all ranks run the collectives' own code, on links that they share. Here communication is a large part of it,
// and what a walk can't see is, too.
TEST(LoneWalk, IsCloseToThePlayedStep) {
  Setting setting;
  setting.model = find_config("paper-7b").config;
  setting.model.layers = 2;
  setting.bytes = ElementBytes::of(DType::bf16);
  setting.batch = 8;
  setting.sequence = 8192;
  const Machine h100 = find_machine("h100");
  for (const char* label : {"dp=2,tp=8", "dp=2,tsp=8", "dp=2,sp=8", "dp=2,zero3=8", "tp=2,tsp=8", "zero3=16"}) {
    const Layout layout = Layout::parse(label);
    const double walked = judge(setting, layout, h100, {.memory_bytes = 1ULL << 40, .dtype = DType::bf16}).time.seconds;
    const double played = simulate({setting, layout}, h100, {.reassociate = true}).seconds;
    EXPECT_NEAR(walked / played, 1, 0.15) << label << ": " << walked << " s, played " << played;
  }
}

}  // namespace
}  // namespace tsprun::detail::theory::lone_walk_test
