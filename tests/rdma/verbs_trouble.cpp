// Scenarios: a machine cut off, silent, without grants, or late, and ports that flap or go down.
#include "tests/rdma/verbs_trouble.h"

#include "tests/rdma/verbs_pair.h"
#include "transport/posix.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test {

namespace {

constexpr double kDeadline_s = 12;

/// Waits until `outcome` is no longer pending, within the deadline; the lane must be broken, by this in the adapter's own words.
void expect_break(VerbsPair& pair, const std::string& status, const std::function<Outcome()>& outcome) {
  const std::uint64_t begin = posix::now_ns();
  pair.until([&] { return outcome() != Outcome::pending; }, "a break", kDeadline_s);
  const std::string detail = pair.transport().found({0, kStream}).detail;
  std::printf("after %.2f s: %s\n", static_cast<double>(posix::now_ns() - begin) / 1e9, detail.c_str());
  require(outcome() == Outcome::disconnected, "not disconnected");
  require(contains(detail, status) && contains(detail, "queue pair"), "the cause: " + detail);
  require(!pair.transport().connected(0), "a broken way counts as connected");
  require(pair.transport().broken(0) == detail, "the way is broken by: " + pair.transport().broken(0));
}

/// Expects the same of a message each way. The broken pair must still close.
void expect_break_of_traffic(VerbsPair& pair, const std::string& status) {
  std::vector<std::byte> bytes(100);
  pair.send(kStream, envelope_of(1), bytes);
  const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
  expect_break(pair, status, [&] { return pair.transport().test_receive({0, kStream}, ticket); });
  require(pair.transport().close(0), "a broken lane keeps close() waiting");
}

/// Expects that nothing is found wrong for so long, though nothing comes.
void expect_quiet(VerbsPair& pair, std::uint64_t ns, const std::function<Outcome()>& outcome) {
  const std::uint64_t begin = posix::now_ns();
  pair.until([&] { return posix::now_ns() - begin > ns || outcome() != Outcome::pending; }, "some seconds");
  require(outcome() == Outcome::pending, "silence broke the lane: " + pair.transport().found({0, kStream}).detail);
}

/// Lets both machines meet, cuts machine 1 off while `then` runs, and joins it again.
void while_cut_off(VerbsPair& pair, const std::function<void()>& then) {
  pair.meet();
  if (node() == 0) weather("cut 1");
  then();
  pair.meet();
  if (node() == 0) weather("join 1");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace

void cut() {
  VerbsPair pair("cut", {.timeout_s = kDeadline_s});
  std::vector<std::byte> bytes(100);
  for (std::uint32_t i = 2; i < 22; ++i) {  // more than a lane has slots
    pair.send(kStream, envelope_of(i), bytes);
    pair.finish_receive(kStream, pair.receive(kStream, envelope_of(i), bytes));
  }
  while_cut_off(pair, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    expect_break_of_traffic(pair, "IBV_WC_RETRY_EXC_ERR");
    const Ticket late = pair.send(kStream, envelope_of(30), pair.heap(0, 1 << 20));
    require(pair.transport().test_send({0, kStream}, late) == Outcome::disconnected, "a message into a broken lane isn't lost");
  });
}

void silence() {
  VerbsPair pair("silence", {.timeout_s = kDeadline_s});
  pair.open(kStream);
  std::vector<std::byte> bytes(100);
  const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
  const auto outcome = [&] { return pair.transport().test_receive({0, kStream}, ticket); };
  expect_quiet(pair, 5'000'000'000, outcome);
  while_cut_off(pair, [&] { expect_break(pair, "IBV_WC_RETRY_EXC_ERR", outcome); });
}

void ungranted() {
  VerbsPair pair("ungranted", {.timeout_s = kDeadline_s});
  pair.open(kStream);
  const Ticket ticket = node() == 0 ? pair.send(kStream, envelope_of(1), pair.heap(0, 1 << 20)) : 0;
  const auto outcome = [&] { return pair.transport().test_send({0, kStream}, ticket); };
  if (node() == 0) expect_quiet(pair, 2'000'000'000, outcome);
  while_cut_off(pair, [&] {
    if (node() == 0) expect_break(pair, "IBV_WC_RETRY_EXC_ERR", outcome);
  });
}

void unopened() {
  VerbsPair pair("unopened", {.timeout_s = kDeadline_s});
  while_cut_off(pair, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    expect_break_of_traffic(pair, "IBV_WC_RETRY_EXC_ERR");
  });
}

void early() {
  VerbsPair pair("early", {});
  const auto bytes_of = [](std::uint32_t i) {
    return i == 7 ? std::size_t{50000} : i == 15 ? std::size_t{8192} : i * std::size_t{40};
  };
  std::vector<std::byte> small(8192);
  pair.meet();  // from here on machine 1 makes no progress, until both meet again
  if (node() == 0) {
    verbs::VerbsTransport& transport = pair.transport();
    const LaneId lane{0, kStream};
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::span<std::byte> payload = i == 7 ? pair.heap(0, bytes_of(i)) : std::span(small).first(bytes_of(i));
      fill(payload, i);
      const Ticket ticket = transport.send(lane, envelope_of(i), payload, Delivery::copy_if_small);
      require(ticket != kNotNow, "message " + std::to_string(i) + " has no room");
      require((transport.test_send(lane, ticket) == Outcome::done) == (i != 7), "the end of message " + std::to_string(i));
      if (i != 6) continue;
      const std::uint64_t begin = posix::now_ns();
      while (posix::now_ns() - begin < 500'000'000) transport.progress();  // until what opens the queue is acknowledged
      require(!transport.close(0), "what hasn't left counts as arrived");
    }
    require(transport.send(lane, envelope_of(16), small, Delivery::copy_if_small) == kNotNow, "credits without end");
    fill(small, 99);
    pair.meet();
    pair.send(kStream, envelope_of(16), small);
  } else {
    pair.meet();
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::span<std::byte> into = pair.heap(1 << 20, bytes_of(i));
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(i), into));
      require(holds(into, i), "message " + std::to_string(i) + " arrived damaged");
    }
    pair.finish_receive(kStream, pair.receive(kStream, envelope_of(16), small));
    require(holds(small, 99), "the message after them arrived damaged");
  }
  pair.close();
}

void unanswered() {
  VerbsPair pair("unanswered", {.timeout_s = kDeadline_s});
  pair.meet();  // from here on machine 1 makes no progress
  std::vector<std::byte> bytes(100);
  if (node() == 0) {
    const Ticket ticket = pair.send(kStream, envelope_of(1), bytes);
    require(pair.transport().test_send({0, kStream}, ticket) == Outcome::done, "a small send isn't done at once");
    const auto outcome = [&] { return pair.transport().broken(0).empty() ? Outcome::pending : Outcome::disconnected; };
    expect_quiet(pair, 3'000'000'000, outcome);  // what opens the queue has long been acknowledged
    while_cut_off(pair, [&] { expect_break(pair, "IBV_WC_RETRY_EXC_ERR", outcome); });
    require(pair.transport().close(0), "an entry that can't leave any more keeps close() waiting");
  } else {
    while_cut_off(pair, [] {});
  }
}

void port_flap() {
  VerbsPair pair("flap", {.timeout_s = 120});
  pair.open(kStream);
  const std::span<std::byte> bytes = pair.heap(0, 30000);
  if (node() == 0) {
    fill(bytes, 4);
    pair.meet();
    pair.finish_send(kStream, pair.send(kStream, envelope_of(1), bytes));
  } else {
    const Ticket posted = pair.receive(kStream, envelope_of(1), bytes);
    pair.until([&] { return pair.transport().close(0); }, "the grant has arrived");
    run_shell("ip link set eth0 down");
    pair.meet();
    const std::uint64_t begin = posix::now_ns();
    while (posix::now_ns() - begin < 1'500'000'000) pair.transport().progress();
    require(pair.transport().test_receive({0, kStream}, posted) == Outcome::pending, "it came through a dead port");
    run_shell("ip link set eth0 up");
    pair.finish_receive(kStream, posted);
    require(holds(bytes, 4), "damaged");
  }
  pair.close();
}

void port_down() {
  VerbsPair pair("down", {.timeout_s = kDeadline_s});
  pair.open(kStream);
  pair.meet();
  if (node() == 1) run_shell("ip link set eth0 down");
  pair.meet();
  expect_break_of_traffic(pair, node() == 0 ? "IBV_WC_RETRY_EXC_ERR" : "IBV_WC_");
  if (node() == 1) {
    const std::string detail = pair.transport().found({0, kStream}).detail;
    require(contains(detail, "port 1 is down"), "the port isn't named: " + detail);
  }
  pair.meet();
  if (node() == 1) run_shell("ip link set eth0 up");
}

}  // namespace tsprun::detail::test
