// Sets RDMA_SHIM, of which verbs_shim.cpp has the words, and looks at what becomes of it.
#include "tests/rdma/verbs_unlike.h"

#include "tests/rdma/verbs_pair.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/verbs/device.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test {

namespace {

using verbs::VerbsTransport;

/// The shim's words, in force as long as this lives.
class Altered {
 public:
  explicit Altered(const std::string& words) { ::setenv("RDMA_SHIM", words.c_str(), 1); }
  Altered(const Altered&) = delete;
  Altered& operator=(const Altered&) = delete;
  ~Altered() { ::unsetenv("RDMA_SHIM"); }
};

/// What queue pairs were told since the shim's words were set.
std::string seen() {
  const auto function = reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, "shim_seen"));
  require(function != nullptr, "verbs_shim isn't preloaded");
  return function();
}

void expect(const std::string& text, const std::string& part) { require(contains(text, part), "no '" + part + "' in: " + text); }

std::string why_not() { return VerbsTransport({}).why_not(); }

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was refused");
}

std::string refusal_of(const std::string& device) {
  return error_of([&] { VerbsTransport({.device = device}).address(0); });
}

/// Sends messages of some sizes each way, each once.
void exchange_some(VerbsPair& pair) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{400}, std::size_t{3000}, std::size_t{30000}}) {
    const auto sequence = static_cast<std::uint32_t>(bytes);
    fill(pair.heap(0, bytes), sequence + static_cast<std::uint32_t>(node()));
    const Ticket posted = pair.receive(kStream, envelope_of(sequence), pair.heap(1 << 20, bytes));
    pair.finish_send(kStream, pair.send(kStream, envelope_of(sequence), pair.heap(0, bytes)));
    pair.finish_receive(kStream, posted);
    require(holds(pair.heap(1 << 20, bytes), sequence + static_cast<std::uint32_t>(1 - node())), "damaged");
  }
}

}  // namespace

void odd_devices() {
  {
    const Altered ports("ports=255");
    const verbs::Ports found = verbs::list_ports();
    require(found.ports.size() == 255 && found.ports.back().number == 255, std::to_string(found.ports.size()) + " ports");
    require(verbs::choose_port(found, {}, 1).port.number == 1, "a port that is down was taken");
    require(why_not().empty(), why_not());
  }
  {
    const Altered long_table("no_gid_table");
    require(verbs::choose_port(verbs::list_ports(), {}, 0).gid.index == 1, "no GID was found row by row");
  }
  {
    const Altered empty("max_msg=0");
    expect(why_not(), "its messages have at most 0 bytes");
  }
  for (const char* transport : {"transport=-1", "transport=2"}) {
    const Altered efa(transport);
    expect(why_not(), "device rxe0 has no reliable connections");
    expect(refusal_of("rxe0"), "device rxe0 has no reliable connections");
  }
  {
    const Altered iwarp("transport=1");
    expect(why_not(), "librdmacm");
  }
  {
    const Altered container("foreign");
    const verbs::ChosenPort chosen = verbs::choose_port(verbs::list_ports(), {}, 0);
    require(chosen.gid.index == 1, "chosen: " + chosen.text());
    const verbs::Port port = verbs::list_ports().ports.at(0);
    require(port.gids.at(0).foreign && port.gids.at(0).text() == "::ffff:10.99.0.1", port.gids.at(0).text());
  }
}

void odd_failures() {
  {
    const Altered mana("create_qp@1=95");
    expect(why_not(), "no queue pair on rxe0 port 1");
    expect(why_not(), "Operation not supported");
    expect(refusal_of("rxe0"), "Operation not supported");
  }
  {
    // Small queue pairs would fit, and the whole ones wouldn't when peers are first used.
    const Altered few("max_cqe=100");
    expect(VerbsTransport({.peers = 65}).why_not(), "completions are needed at once, rxe0 has room for 100");
  }
  std::vector<std::byte> address;
  {
    const Altered few("create_qp@2=12");  // the constructor's is the first
    VerbsTransport here({});
    require(here.why_not().empty(), here.why_not());
    address = here.address(0);
    expect(here.can_reach(0, address).why, "no queue pair");
  }
  expect(VerbsTransport({}).can_reach(0, address).why, "at the peer: verbs: no queue pair");
  {
    const Altered small("reg_mr@1=12");
    VerbsTransport here({});
    expect(here.can_reach(0, here.address(0)).why, "message buffers can't be registered");
  }
}

void odd_rings() {
  constexpr const char* kWhy = "message buffers can't be registered";
  {
    VerbsPair pair("unringed_here", {});
    std::vector<std::byte> bytes(100);
    pair.meet();
    if (node() == 0) {
      const Altered full("reg_mr@1=12");
      const LaneId lane{0, kStream};
      expect(error_of([&] { pair.transport().send(lane, envelope_of(1), bytes, Delivery::copy_if_small); }), kWhy);
      expect(error_of([&] { pair.transport().receive(lane, envelope_of(1), bytes); }), kWhy);
    }
    pair.meet();
    exchange_some(pair);  // once there is memory again, and not as messages 2 and later
    pair.close();
  }
  // A machine that can't open its end says so, and the other one hears of it, though it only waits.
  VerbsPair pair("unringed_there", {.device = "rxe0,retries=3,timeout=14", .timeout_s = 12});
  std::vector<std::byte> bytes(100);
  pair.meet();
  const Altered full(node() == 1 ? "reg_mr@1=12" : "");
  if (node() == 0) {
    const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
    pair.until([&] { return pair.transport().test_receive({0, kStream}, ticket) != Outcome::pending; }, "an end", 12);
    expect(pair.transport().found({0, kStream}).detail, "IBV_WC_RETRY_EXC_ERR");
  } else {
    pair.until([&] { return !pair.transport().broken(0).empty(); }, "a break");
    const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
    require(pair.transport().test_receive({0, kStream}, ticket) == Outcome::disconnected, "a broken lane waits");
    expect(pair.transport().found({0, kStream}).detail, kWhy);
  }
  pair.meet();
}

void odd_growth() {
  for (const char* words : {"create_qp@1=12", "create_cq@1=12"}) {
    const std::string why = contains(words, "qp") ? "no queue pair on rxe0" : "no completion queue of";
    {
      VerbsPair pair(std::string("ungrown_here.") + words, {.device = "whole=0"});
      std::vector<std::byte> bytes(100);
      pair.meet();
      if (node() == 0) {
        const Altered full(words);
        const LaneId lane{0, kStream};
        expect(error_of([&] { pair.transport().send(lane, envelope_of(1), bytes, Delivery::copy_if_small); }), why);
        expect(error_of([&] { pair.transport().receive(lane, envelope_of(1), bytes); }), why);
      }
      pair.meet();
      exchange_some(pair);  // once there is room again, and not as messages 2 and later
      pair.close();
    }
    // A machine that can't make its end says so, and the other one hears of it, though it only waits.
    VerbsPair pair(std::string("ungrown_there.") + words, {.device = "whole=0,retries=3,timeout=14", .timeout_s = 12});
    std::vector<std::byte> bytes(100);
    pair.meet();
    const Altered full(node() == 1 ? words : "");
    if (node() == 0) {
      const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
      pair.until([&] { return pair.transport().test_receive({0, kStream}, ticket) != Outcome::pending; }, "an end", 12);
      expect(pair.transport().found({0, kStream}).detail, "IBV_WC_RETRY_EXC_ERR");
    } else {
      pair.until([&] { return !pair.transport().broken(0).empty(); }, "a break");
      expect(pair.transport().broken(0), why);
    }
    pair.meet();
  }
  // A link for which the peer's Ethernet address isn't found yet is tried again, also by a rank that never sleeps.
  VerbsPair pair("late_link", {.device = "whole=0"});
  pair.poll_for(~std::uint64_t{0});
  std::vector<std::byte> bytes(100);
  std::vector<std::byte> into(100);
  pair.meet();
  Ticket posted = 0;
  {
    const Altered late(node() == 0 ? "modify_qp@2=110" : "");  // ETIMEDOUT at RTR
    posted = pair.receive(kStream, envelope_of(1), into);
    const auto begun = std::chrono::steady_clock::now();
    pair.until([&] { return std::chrono::steady_clock::now() - begun > std::chrono::seconds(1); }, "a second");
    pair.meet();
  }
  const Ticket sent = pair.send(kStream, envelope_of(1), bytes);
  pair.until([&] { return pair.transport().test_receive({0, kStream}, posted) != Outcome::pending; }, "a late link", 60);
  pair.finish_send(kStream, sent);
  pair.close();
}

void odd_inline() {
  for (const char* words : {"inline=0", "inline=64", "inline=512"}) {
    const Altered altered(words);
    VerbsPair pair(words, {});
    exchange_some(pair);
    pair.close();
  }
}

void odd_addresses() {
  {
    const Altered plain(" ");
    VerbsPair pair("told", {.device = "rxe0,retries=5,timeout=17,tc=106,sl=3,hops=9,mtu=512"});
    exchange_some(pair);
    expect(seen(), "INIT pkey_index=0; ");
    expect(seen(), "RTR mtu=2 sl=3 global=1 sgid=1 tc=106 hops=9; ");
    expect(seen(), "RTS timeout=17 retries=5; ");
    pair.close();
  }
  {
    // An InfiniBand port that asks for global routing headers: soft-RoCE works with none but these.
    const Altered infiniband("infiniband grh pkeys=0x7fff,0x8023,0x8001");
    VerbsPair pair("grh", {});
    exchange_some(pair);
    expect(seen(), "INIT pkey_index=1; ");
    expect(seen(), "global=1 sgid=0");
    pair.close();
    VerbsPair named("pkey", {.device = "rxe0,pkey=1"});  // without its bit 15
    named.close();
    expect(seen(), "INIT pkey_index=2; ");
    expect(refusal_of("rxe0,pkey=0x8777"), "no member of partition 0x8777");
    verbs::VerbsTransport left({.device = "rxe0,pkey=0x8001"});
    verbs::VerbsTransport right({.device = "rxe0,pkey=0x8023"});
    expect(left.can_reach(0, right.address(0)).why, "the ends are in partitions 0x8001 and 0x8023");
  }
}

void odd_completions() {
  const auto broken = [](const std::string& name, const std::string& words, const std::string& why) {
    VerbsPair pair(name, {});
    pair.meet();
    const Altered altered(words);
    std::vector<std::byte> bytes(100);
    const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
    for (std::uint32_t i = 1; i < 12; ++i) pair.transport().send({0, kStream}, envelope_of(i), bytes, Delivery::copy_if_small);
    if (node() == 0) {
      pair.until([&] { return !pair.transport().broken(0).empty(); }, "a break by " + words);
      expect(pair.transport().broken(0), why);
      pair.until([&] { return pair.transport().test_receive({0, kStream}, ticket) != Outcome::pending; }, "the end of a receive");
    }
    pair.meet();
  };
  // The other machine's adapter is as it is.
  broken("failed", node() == 0 ? "fail@1=12" : "", "IBV_WC_RETRY_EXC_ERR");
  broken("unreadable", node() == 0 ? "cq_error" : "", "can't be read any more");
  broken("unposted", node() == 0 ? "post_send@1=12" : "", "ibv_post_send on queue pair");
}

void long_flap() {
  constexpr auto kGone = std::chrono::seconds(9);
  VerbsPair pair("long_flap", {.timeout_s = 30});  // as it is by default
  exchange_some(pair);
  pair.meet();
  if (node() == 0) weather("cut 1");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const std::uint64_t begin = posix::now_ns();
  const Ticket sent = pair.send(kStream, envelope_of(9), pair.heap(0, 100));
  const Ticket posted = pair.receive(kStream, envelope_of(9), pair.heap(1 << 20, 100));
  pair.until([&] { return posix::now_ns() - begin > static_cast<std::uint64_t>(std::chrono::nanoseconds(kGone).count()); },
             "time");
  if (node() == 0) weather("join 1");
  pair.finish_send(kStream, sent);
  pair.finish_receive(kStream, posted);
  std::printf("a link was gone for %.1f s; all has arrived after %.1f s\n", std::chrono::duration<double>(kGone).count(),
              static_cast<double>(posix::now_ns() - begin) / 1e9);
  pair.close();
}

void lost_address() {
  VerbsPair pair("lost_address", {.device = "rxe0,retries=3,timeout=14"});
  exchange_some(pair);
  pair.meet();
  if (node() == 0) run_shell("ip addr del 10.77.0.1/24 dev eth0");
  std::vector<std::byte> bytes(100);
  const Ticket posted = pair.receive(kStream, envelope_of(9), bytes);
  pair.send(kStream, envelope_of(9), bytes);
  pair.until([&] { return pair.transport().test_receive({0, kStream}, posted) != Outcome::pending; }, "an end");
  const std::string why = pair.transport().broken(0);
  std::printf("%s\n", why.c_str());
  if (node() == 0) run_shell("ip addr add 10.77.0.1/24 dev eth0");
  if (node() == 0) expect(why, "GID 1 of rxe0:1, ::ffff:10.77.0.1, is gone");
  else expect(why, "(--rdma retries=3,timeout=14)");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  pair.meet();
}

void small_packets() {
  if (node() == 0) weather("longest 1500");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  try {
    VerbsPair pair("full", {.device = "rxe0,retries=2,timeout=18"});
    require(false, "full packets arrived");
  } catch (const std::exception& error) {
    expect(error.what(), "a write of 64 bytes arrived, one of 4096 didn't");
    expect(error.what(), "--rdma mtu=2048");
    std::printf("%s\n", error.what());
  }
  VerbsPair pair("smaller", {.device = "rxe0,mtu=1024"});
  exchange_some(pair);
  pair.close();
  if (node() == 0) weather("longest 65600");
}

}  // namespace tsprun::detail::test
