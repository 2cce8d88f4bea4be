// What verbs decides without a device: which port and GID, how long to try, what an address says, and numbers cut to 28 bits.

#include "transport/cause.h"
#include "transport/verbs/device.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/reported.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/verbs/wire.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::verbs::verbs_choice_test {
namespace {

Gid gid_of(int index, GidType type, const char* text) {
  Gid gid;
  gid.index = index;
  gid.type = type;
  EXPECT_EQ(::inet_pton(AF_INET6, text, gid.bytes.data()), 1);
  return gid;
}

Port port_of(const std::string& device, int number, bool active, std::vector<Gid> gids) {
  Port port;
  port.device = device;
  port.number = number;
  port.active = active;
  port.state = active ? "PORT_ACTIVE" : "PORT_DOWN";
  port.ethernet = true;
  port.mtu = 5;
  port.mtu_bytes = 4096;
  port.gids = std::move(gids);
  return port;
}

const Gid kLocal = gid_of(0, GidType::roce_v2, "fe80::1");
const Gid kOldFour = gid_of(1, GidType::roce_v1, "::ffff:10.0.0.1");
const Gid kFour = gid_of(2, GidType::roce_v2, "::ffff:10.0.0.1");
const Gid kSix = gid_of(3, GidType::roce_v2, "2001:db8::1");

std::string refusal(const Ports& ports, const std::string& choice) {
  try {
    choose_port(ports, DeviceChoice::parse(choice), 0);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(VerbsChoice, AnIpv4MappedGidGoesBeforeAGlobalOneAndALinkLocalOneIsNeverTaken) {
  EXPECT_EQ(choose_gid({kLocal, kOldFour, kSix, kFour})->index, 2);
  EXPECT_EQ(choose_gid({kLocal, kOldFour, kSix})->index, 3);
  EXPECT_FALSE(choose_gid({kLocal, kOldFour}).has_value());
  EXPECT_FALSE(choose_gid({}).has_value());
  EXPECT_EQ(kFour.text(), "::ffff:10.0.0.1");
}

TEST(VerbsChoice, LocalRanksTakeTheActivePortsInTurn) {
  const std::vector<Port> ports = {port_of("a", 1, true, {kFour}), port_of("b", 1, false, {kFour}), port_of("c", 1, true, {kSix}),
                                   port_of("d", 1, true, {kLocal})};
  EXPECT_EQ(choose_port({ports, {}}, {}, 0).port.device, "a");
  EXPECT_EQ(choose_port({ports, {}}, {}, 1).port.device, "c");
  EXPECT_EQ(choose_port({ports, {}}, {}, 3).port.device, "a") << "d has no GID to use, and is none of them";
  EXPECT_EQ(choose_port({ports, {}}, DeviceChoice::parse("c"), 0).gid.index, 3);
  EXPECT_EQ(choose_port({ports, {}}, DeviceChoice::parse("d:1:0"), 0).gid.index, 0);
}

ibv_port_attr reported(ibv_port_state state, std::uint32_t mtu, std::uint32_t max_bytes) {
  ibv_port_attr port{};
  port.state = state;
  std::memcpy(&port.active_mtu, &mtu, sizeof mtu);  // a device may report what is no ibv_mtu
  port.max_msg_sz = max_bytes;
  return port;
}

TEST(VerbsChoice, WhatAPortReportsIsCheckedBeforeItIsUsed) {
  EXPECT_EQ(port_defect(reported(IBV_PORT_ACTIVE, IBV_MTU_4096, 1 << 30)), "");
  EXPECT_EQ(port_defect(reported(IBV_PORT_ACTIVE, IBV_MTU_1024, 0)),
            "its messages have at most 0 bytes, of 8256 that are needed");
  EXPECT_EQ(port_defect(reported(IBV_PORT_ACTIVE, 0, 1 << 30)), "its MTU is of the unknown number 0");
  EXPECT_EQ(port_defect(reported(IBV_PORT_ACTIVE, 200, 1 << 30)), "its MTU is of the unknown number 200");
  EXPECT_EQ(port_defect(reported(IBV_PORT_DOWN, 0, 0)), "") << "it says of itself that it is down";
  EXPECT_EQ(mtu_bytes_of(reported(IBV_PORT_ACTIVE, IBV_MTU_4096, 0)), 4096);
}

TEST(VerbsChoice, DevicesWithoutConnectionsOfInfiniBandOrRoceAreNamedForWhatTheyAre) {
  EXPECT_EQ(device_defect("rxe0", IBV_TRANSPORT_IB), "");
  EXPECT_NE(device_defect("siw0", IBV_TRANSPORT_IWARP).find("device siw0 speaks iWARP"), std::string::npos);
  for (const auto transport : {IBV_TRANSPORT_UNSPECIFIED, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_UNKNOWN})
    EXPECT_NE(device_defect("efa0", transport).find("device efa0 has no reliable connections"), std::string::npos);
}

TEST(VerbsChoice, APortThatCantBeUsedIsPassedOverAndNamedWithItsReason) {
  Port odd = port_of("a", 1, true, {kFour});
  odd.defect = "its messages have at most 0 bytes, of 8256 that are needed";
  const Ports found{{odd, port_of("b", 1, true, {kFour})}, {}};
  EXPECT_EQ(choose_port(found, {}, 0).port.device, "b");
  EXPECT_NE(refusal(found, "a").find("a:1 can't be used: its messages have at most 0 bytes"), std::string::npos)
      << refusal(found, "a");
}

TEST(VerbsChoice, ABadDeviceHidesNoGoodOneAndIsNamedWithItsReason) {
  Ports found{{port_of("b", 1, true, {kFour})}, {{"a", "device a can't be opened: Permission denied"}}};
  EXPECT_EQ(choose_port(found, {}, 0).port.device, "b");
  EXPECT_EQ(choose_port(found, DeviceChoice::parse("b"), 0).port.device, "b");
  EXPECT_EQ(refusal(found, "a"), "--rdma a: device a can't be opened: Permission denied");
  EXPECT_NE(refusal(found, "x").find("no such device; here are: b:1"), std::string::npos) << refusal(found, "x");
  EXPECT_TRUE(refusal(found, "x").ends_with("; device a can't be opened: Permission denied")) << refusal(found, "x");
  found.ports.clear();
  EXPECT_EQ(refusal(found, ""), "no RDMA device works: device a can't be opened: Permission denied");
}

TEST(VerbsChoice, ARefusalSaysWhatIsThere) {
  const std::vector<Port> ports = {port_of("a", 1, true, {kLocal, kFour}), port_of("b", 1, false, {kFour}),
                                   port_of("d", 1, true, {kLocal})};
  EXPECT_NE(refusal({ports, {}}, "x").find("no such device; here are: a:1 (PORT_ACTIVE"), std::string::npos)
      << refusal({ports, {}}, "x");
  EXPECT_NE(refusal({ports, {}}, "a:2").find("no port 2"), std::string::npos);
  EXPECT_NE(refusal({ports, {}}, "a:1:9").find("no GID of index 9"), std::string::npos);
  EXPECT_NE(refusal({ports, {}}, "b").find("no active port"), std::string::npos);
  EXPECT_NE(refusal({ports, {}}, "d").find("link-local"), std::string::npos);
  EXPECT_NE(refusal({}, "").find("no RDMA device"), std::string::npos);
}

TEST(VerbsChoice, AMalformedChoiceIsRefused) {
  for (const char* text : {"a:", "a:x", "a:1:", "a:1:-1", "a:0", ":1", "a:1:2:3", "a:99999999999", "a:1:256", "^a,^b"})
    EXPECT_THROW(DeviceChoice::parse(text), Error) << text;
  for (const char* text : {"^", "^,a", "a,", "a,,b", "^tc=3", "=3", "tc=", "a,tc=256", "mtu=1500", "pkey=0x", "speed=3"})
    EXPECT_THROW(DeviceChoice::parse(text), Error) << text;
  const DeviceChoice choice = DeviceChoice::parse("mlx5_0:2:7,mlx5_1,tc=106,pkey=0x8001");
  ASSERT_EQ(choice.named.size(), 2U);
  EXPECT_EQ(choice.named[0].device, "mlx5_0");
  EXPECT_EQ(choice.named[0].port, 2);
  EXPECT_EQ(choice.named[0].gid, 7);
  EXPECT_EQ(choice.named[1].device, "mlx5_1");
  EXPECT_EQ(choice.settings.tc, 106);
  EXPECT_EQ(choice.settings.pkey, 0x8001);
  EXPECT_TRUE(choice.names_ports());
  const DeviceChoice others = DeviceChoice::parse("^mlx5_bond_0,mlx5_9:2,sl=3");
  EXPECT_FALSE(others.names_ports());
  EXPECT_EQ(others.left_out.size(), 2U);
  EXPECT_EQ(others.settings.sl, 3);
  EXPECT_FALSE(DeviceChoice::parse("timeout=20").names_ports());
  try {
    DeviceChoice::parse("speed=3");
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("there is no setting 'speed'; there are retries, timeout, mtu"), std::string::npos)
        << error.what();
  }
}

TEST(VerbsChoice, NamesStandInTheOrderOfTheirNumbers) {
  for (const auto& [first, second] : std::vector<std::pair<const char*, const char*>>{{"mlx5_2", "mlx5_10"},
                                                                                      {"mlx5_9", "mlx5_bond_0"},
                                                                                      {"a", "a0"},
                                                                                      {"bnxt_re0", "mlx5_0"},
                                                                                      {"rocep1s0f0", "rocep1s0f1"},
                                                                                      {"rocep9s0", "rocep129s0"},
                                                                                      {"a01", "a1"},
                                                                                      {"a1b2", "a1b10"}}) {
    EXPECT_TRUE(natural_order(first, second)) << first << " " << second;
    EXPECT_FALSE(natural_order(second, first)) << first << " " << second;
  }
  EXPECT_FALSE(natural_order("mlx5_2", "mlx5_2"));
}

TEST(VerbsChoice, SeveralPortsMayBeNamedAndOthersLeftOut) {
  const Ports found{{port_of("mlx5_0", 1, true, {kFour}), port_of("mlx5_1", 1, true, {kFour}),
                     port_of("mlx5_2", 1, true, {kFour}), port_of("mlx5_bond_0", 1, true, {kFour})},
                    {}};
  const auto chosen = [&](const char* text, int rank) { return choose_port(found, DeviceChoice::parse(text), rank).port.device; };
  EXPECT_EQ(chosen("mlx5_2,mlx5_0", 0), "mlx5_2") << "in the order in which they are named";
  EXPECT_EQ(chosen("mlx5_2,mlx5_0", 1), "mlx5_0");
  EXPECT_EQ(chosen("mlx5_2,mlx5_0", 2), "mlx5_2");
  EXPECT_EQ(chosen("^mlx5_bond_0,mlx5_0", 0), "mlx5_1");
  EXPECT_EQ(chosen("^mlx5_bond_0,mlx5_0", 1), "mlx5_2");
  EXPECT_EQ(chosen("^mlx5_bond_0,mlx5_0", 2), "mlx5_1");
  EXPECT_NE(refusal(found, "mlx5_0,mlx5_7").find("no such device: mlx5_7"), std::string::npos);
  EXPECT_NE(refusal(found, "^mlx5_0,mlx5_1,mlx5_2,mlx5_bond_0").find("it leaves out all ports"), std::string::npos);
}

TEST(VerbsChoice, APortThatIsDownShiftsNoOthersRail) {
  const auto rails = [](bool second_is_up) {
    const Ports found{{port_of("a", 1, true, {kFour}), port_of("b", 1, second_is_up, {kFour}), port_of("c", 1, true, {kFour}),
                       port_of("d", 1, true, {kFour})},
                      {}};
    std::vector<int> all;
    for (int rank = 0; rank < 4; ++rank) all.push_back(choose_port(found, {}, rank).rail);
    return all;
  };
  EXPECT_EQ(rails(true), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(rails(false), (std::vector<int>{0, 2, 2, 3}));
  // Second ports without a cable are no rails.
  const Ports cards{
      {port_of("a", 1, true, {kFour}), port_of("a", 2, false, {}), port_of("b", 1, true, {kFour}), port_of("b", 2, false, {})},
      {}};
  EXPECT_EQ(choose_port(cards, {}, 1).port.device, "b");
  EXPECT_EQ(choose_port(cards, {}, 1).rail, 1);
}

TEST(VerbsChoice, PortsOfTheProcesssNumaNodeGoFirst) {
  Ports found{{port_of("a", 1, true, {kFour}), port_of("b", 1, true, {kFour}), port_of("c", 1, true, {kFour}),
               port_of("d", 1, true, {kFour})},
              {}};
  found.ports[0].numa_node = found.ports[1].numa_node = 0;
  found.ports[2].numa_node = found.ports[3].numa_node = 1;
  EXPECT_EQ(choose_port(found, {}, 4, 1).port.device, "c");
  EXPECT_EQ(choose_port(found, {}, 5, 1).port.device, "d");
  EXPECT_EQ(choose_port(found, {}, 5, 1).rail, 3);
  EXPECT_EQ(choose_port(found, {}, 1, 1).port.device, "d");
  EXPECT_EQ(choose_port(found, {}, 4, 7).port.device, "a") << "no port is there";
  EXPECT_EQ(choose_port(found, DeviceChoice::parse("a"), 4, 1).port.device, "a") << "a name goes before nearness";
}

/// Returns the devices that each of so many ranks takes, as "a b, c".
std::string shares(const Ports& found, int ranks, const char* choice = "", int near_node = -1) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != 0) text += ", ";
    const auto chosen = choose_ports(found, DeviceChoice::parse(choice), {rank, ranks}, near_node);
    for (std::size_t i = 0; i < chosen.size(); ++i) text += (i == 0 ? "" : " ") + chosen[i].port.device;
  }
  return text;
}

TEST(VerbsChoice, RanksOfANodeDivideItsPorts) {
  Ports found{{port_of("a", 1, true, {kFour}), port_of("b", 1, true, {kFour}), port_of("c", 1, true, {kFour}),
               port_of("d", 1, true, {kFour})},
              {}};
  EXPECT_EQ(shares(found, 1), "a b c d");
  EXPECT_EQ(shares(found, 2), "a c, b d");
  EXPECT_EQ(shares(found, 3), "a d, b, c");
  EXPECT_EQ(shares(found, 4), "a, b, c, d");
  EXPECT_EQ(shares(found, 6), "a, b, c, d, a, b");
  EXPECT_EQ(shares(found, 1, "nics=1"), "a");
  EXPECT_EQ(shares(found, 1, "nics=3"), "a b c");
  EXPECT_EQ(shares(found, 2, "nics=1"), "a, b");
  EXPECT_EQ(shares(found, 1, "d,b"), "d b") << "in the order in which they are named";
  EXPECT_EQ(shares(found, 1, "^a"), "b c d");
  found.ports[0].active = false;
  EXPECT_EQ(shares(found, 1), "b c d");
  EXPECT_EQ(shares(found, 2), "c, b d") << "a rank that has another port of its own takes no other's";
  EXPECT_EQ(shares(found, 4), "b, b, c, d");
  found.ports[1].gids = {kLocal};
  EXPECT_EQ(shares(found, 1), "c d");
  // More than a rank can use.
  Ports many;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
    many.ports.push_back(port_of(name, 1, true, {kFour}));
  EXPECT_EQ(shares(many, 1), "a b c d e f g h");
}

TEST(VerbsChoice, RanksOfANumaNodeDivideItsPortsAndARankAloneTakesAll) {
  Ports found{{port_of("a", 1, true, {kFour}), port_of("b", 1, true, {kFour}), port_of("c", 1, true, {kFour}),
               port_of("d", 1, true, {kFour})},
              {}};
  found.ports[0].numa_node = found.ports[1].numa_node = 0;
  found.ports[2].numa_node = found.ports[3].numa_node = 1;
  EXPECT_EQ(shares(found, 1, "", 1), "c d a b") << "the near ones first";
  EXPECT_EQ(shares(found, 2, "", 1), "c d, d c") << "a rank a NUMA node: only one of the two is bound to this one";
  EXPECT_EQ(shares(found, 4, "", 1), "c, d, c, d") << "two are";
  EXPECT_EQ(shares(found, 2, "", 7), "a c, b d") << "no port is there";
  EXPECT_EQ(choose_ports(found, DeviceChoice::parse(""), {0, 1}, 1).front().rail, 2);
}

TEST(VerbsChoice, GidsAreThoseOfThisNetworkNamespaceAndOfTheFamilyAndVersionThatAreWanted) {
  Gid foreign = gid_of(1, GidType::roce_v2, "::ffff:10.99.0.1");
  foreign.foreign = true;
  EXPECT_EQ(choose_gid({foreign, kFour})->index, 2);
  EXPECT_FALSE(choose_gid({foreign}));
  EXPECT_NE(refusal({{port_of("a", 1, true, {kLocal, foreign})}, {}}, "").find("an address of this network namespace"),
            std::string::npos);
  EXPECT_EQ(choose_port({{port_of("a", 1, true, {foreign})}, {}}, DeviceChoice::parse("a:1:1"), 0).gid.index, 1);
  const std::vector<Gid> all = {kLocal, kOldFour, kFour, kSix};
  EXPECT_EQ(choose_gid(all, DeviceChoice::parse("family=6").settings)->index, 3);
  EXPECT_EQ(choose_gid(all, DeviceChoice::parse("family=4").settings)->index, 2);
  EXPECT_EQ(choose_gid(all, DeviceChoice::parse("roce=1").settings)->index, 1);
  EXPECT_FALSE(choose_gid({kSix}, DeviceChoice::parse("family=4").settings));
  EXPECT_EQ(choose_port({{port_of("a", 1, true, all)}, {}}, DeviceChoice::parse("gid=3"), 0).gid.index, 3);
}

TEST(VerbsChoice, ThePartitionIsTheFirstOfAFullMemberOrTheOneThatIsWanted) {
  EXPECT_EQ(choose_pkey({0x7fff, 0x8023, 0x8001}, -1), 1);
  EXPECT_EQ(choose_pkey({0x7fff, 0x23}, -1), 0);
  EXPECT_EQ(choose_pkey({}, -1), 0);
  EXPECT_EQ(choose_pkey({0x7fff, 0x8023, 0x8001}, 0x8001), 2);
  EXPECT_EQ(choose_pkey({0x7fff, 0x8023, 0x8001}, 0x0001), 2);
  EXPECT_EQ(choose_pkey({0x7fff}, 0x8001), std::nullopt);
}

TEST(VerbsChoice, AnMtuThatIsAskedForBoundsThePorts) {
  const Ports found{{port_of("a", 1, true, {kFour})}, {}};
  const Port port = choose_port(found, DeviceChoice::parse("mtu=1024"), 0).port;
  EXPECT_EQ(port.mtu_bytes, 1024);
  EXPECT_EQ(port.mtu, 3);
}

TEST(VerbsChoice, ThePageHasTheTableOfSettings) {
  std::string table = "| setting | from … to | if it isn't given | meaning |\n|---|---|---|---|\n";
  for (const SettingRow& each : kSettings) {
    table += "| `" + std::string(each.name) + "` | " + std::to_string(each.lowest) + " … " + std::to_string(each.highest) +
             " | " + std::string(each.absent) + " | " + std::string(each.meaning) + " |\n";
  }
  std::ifstream file(TSP_TOOLS_DIR "/../docs/how-to/use-rdma.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(table), std::string::npos) << "docs/how-to/use-rdma.md shall have this table:\n" << table;
}

TEST(VerbsChoice, TheAdapterTriesForAboutHalfOfTheDeadlineOrAsItIsTold) {
  for (const double seconds : {2.0, 10.0, 30.0, 600.0}) {
    const RetryLimits limits = RetryLimits::of({}, static_cast<std::uint64_t>(seconds * 1e9));
    double each = 4.096e-6;
    for (int i = 0; i < limits.timeout; ++i) each *= 2;
    const double all = each * (limits.retry_count + 1);
    EXPECT_LE(all, seconds * 0.6);
    EXPECT_GE(all, seconds * 0.29);
    EXPECT_EQ(limits.retry_count, 6);
  }
  EXPECT_LE(RetryLimits::of({}, ~std::uint64_t{0}).timeout, 31);
  const RetryLimits usual = RetryLimits::of({}, 30'000'000'000);
  EXPECT_EQ(usual.text(), "after 7 tries of 2.15 s, 15 s in all (--rdma retries=6,timeout=19)");
  const RetryLimits typed = RetryLimits::of(DeviceChoice::parse("retries=7,timeout=20").settings, 1'000'000'000);
  EXPECT_EQ(typed.retry_count, 7);
  EXPECT_EQ(typed.timeout, 20);
}

TEST(VerbsWire, AnAddressSurvivesTheWayAndNonsenseIsRefused) {
  Address address;
  address.own = {.queue_pair = 0x123456, .door = 5};
  address.first_packet = 0xabcdef;
  address.doors = 0x7f0012345000;
  address.doors_key = 42;
  address.mtu = 3;
  address.ethernet = 1;
  address.gid[15] = 9;
  address.pkey = 0x8001;
  address.grh_required = 1;
  address.small = 1;
  address.port = "rxe0 port 1";
  address.pairs = 2;
  OtherAdapter& other = address.rest.emplace_back();
  other.port.mtu = 4;
  other.port.gid[15] = 11;
  other.port.doors_key = 43;
  std::strcpy(other.name, "rxe1:1");
  const std::vector<std::byte> blob = address.encode();
  const std::optional<Address> read = Address::decode(blob);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->own.queue_pair, 0x123456U);
  EXPECT_EQ(read->door(), 0x7f0012345000U + 4096 + 5 * 384);
  EXPECT_EQ(read->first_packet, 0xabcdefU);
  EXPECT_EQ(read->doors_key, 42U);
  EXPECT_EQ(read->mtu, 3);
  EXPECT_EQ(read->ethernet, 1);
  EXPECT_EQ(read->gid[15], 9);
  EXPECT_EQ(read->pkey, 0x8001);
  EXPECT_EQ(read->grh_required, 1);
  EXPECT_EQ(read->small, 1);
  EXPECT_EQ(read->port, "rxe0 port 1");
  EXPECT_EQ(read->pairs, 2);
  ASSERT_EQ(read->adapters(), 2);
  const Address second = read->by(1);
  EXPECT_EQ(second.port, "rxe1:1");
  EXPECT_EQ(second.mtu, 4);
  EXPECT_EQ(second.gid[15], 11);
  EXPECT_EQ(second.doors_key, 43U);
  EXPECT_EQ(second.door(), read->door()) << "all adapters know the same memory";
  EXPECT_EQ(read->by(0).doors_key, 42U);
  for (std::size_t cut = 0; cut < blob.size(); ++cut) EXPECT_FALSE(Address::decode(std::span(blob).first(cut)).has_value());
  std::vector<std::byte> wrong = blob;
  wrong[sizeof(OwnFields)] ^= std::byte{1};
  EXPECT_FALSE(Address::decode(wrong).has_value());
  wrong = blob;
  wrong[3] = std::byte{1};  // queue pairs have 24 bits
  EXPECT_FALSE(Address::decode(wrong).has_value());
  wrong = blob;
  wrong[sizeof(OwnFields) + sizeof(JobFields) + sizeof(PortFields) + offsetof(PortFields, mtu)] = std::byte{6};
  EXPECT_FALSE(Address::decode(wrong).has_value()) << "an MTU of the second adapter";
  // Where queue pairs could be made for other peers only, the text is for the one that has none.
  address.why_not = "no queue pair is left";
  EXPECT_EQ(Address::decode(address.encode()).value().why_not, "");
  address.own = {};
  EXPECT_EQ(Address::decode(address.encode()).value().why_not, "no queue pair is left");
  address.why_not.clear();
  EXPECT_FALSE(Address::decode(address.encode()).has_value());
  address.own.queue_pair = 1;
  address.mtu = 6;
  EXPECT_FALSE(Address::decode(address.encode()).has_value());
}

/// What 1,024 ranks on 128 nodes pin before they use their peers: the bar is 8 MiB a rank.
TEST(VerbsQueuePair, IdlePeersOfALargeJobPinLittle) {
  constexpr std::size_t kPeers = 1016;
  // rdma-core's mlx5: requests of 256 and 448 bytes, 4 and 256 of them; receives of 16 bytes, 4 and 512.
  EXPECT_EQ(kSmall.pinned_bytes(), 4096U + 8 * 64);
  EXPECT_EQ(kWhole.pinned_bytes(), 131072U + 8192 + (256 + kReceives) * 64);
  EXPECT_LE(kPeers * kSmall.pinned_bytes() + 2 * doors_bytes(kPeers), std::size_t{6} << 20);
  EXPECT_GE(kPeers * kWhole.pinned_bytes(), std::size_t{64} << 20);
}

TEST(VerbsWire, ShortNumbersFindTheirLongOnes) {
  for (const std::uint64_t near :
       {std::uint64_t{0}, std::uint64_t{15}, (std::uint64_t{1} << Immediate::kLowBits) - 2, std::uint64_t{1} << 40}) {
    for (const std::int64_t away : {-20, -1, 0, 1, 16, 40}) {
      if (away < 0 && near < 20) continue;
      const std::uint64_t number = near + static_cast<std::uint64_t>(away);
      EXPECT_EQ(widen(static_cast<std::uint32_t>(number & Immediate::kLowMask), near), number) << near << " " << away;
    }
  }
  const Immediate read = Immediate::decode(Immediate{News::data, 4, 0x01bcdef1}.encode());
  EXPECT_EQ(read.news, News::data);
  EXPECT_EQ(read.stream, 4);
  EXPECT_EQ(read.low, 0x01bcdef1U);
}

/// Needs a machine without RDMA devices; the laboratory's tests look at machines with some.
TEST(VerbsTransport, WithoutADeviceItReachesNobodyAndSaysWhy) {
  if (any_device()) GTEST_SKIP() << "this machine has RDMA devices";
  VerbsTransport here({});
  EXPECT_NE(here.why_not().find("no RDMA device"), std::string::npos);
  VerbsTransport there({});
  const Reach reach = here.can_reach(0, there.address(0));
  EXPECT_FALSE(reach.possible);
  EXPECT_NE(reach.why.find("no RDMA device"), std::string::npos);
  EXPECT_THROW(here.connect(0, there.address(0)), Error);
  EXPECT_FALSE(here.progress());
  EXPECT_EQ(here.descriptor(), -1);
  EXPECT_THROW(VerbsTransport({.device = "rxe0"}), Error);
}

}  // namespace
}  // namespace tsprun::detail::verbs::verbs_choice_test
