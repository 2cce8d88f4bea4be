// VerbsTransport's device, its memory, and how it is connected to peers; progress.cpp has what happens afterwards.
#include "transport/verbs/verbs_transport.h"

#include "transport/cause.h"
#include "transport/log.h"
#include "transport/machine.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <random>
#include <sys/epoll.h>

namespace tsprun::detail::verbs {

namespace {

/// Returns the number of peers up to which queue pairs are whole ones from the start. Beyond, idle peers would pin too much.
int whole_up_to(const Settings& settings) {
  constexpr int kPeers = 64;
  return settings.whole < 0 ? kPeers : settings.whole;
}

/// Returns where peers reach an adapter.
PortFields fields_of(const ChosenPort& here, std::uint32_t doors_key) {
  PortFields fields;
  std::copy(here.gid.bytes.begin(), here.gid.bytes.end(), fields.gid);
  fields.doors_key = doors_key;
  fields.lid = here.port.lid;
  fields.pkey = here.pkey;
  fields.mtu = here.port.mtu;
  fields.ethernet = here.port.ethernet ? 1 : 0;
  fields.network_bits = static_cast<std::uint8_t>(here.network_bits);
  fields.rail = static_cast<std::uint8_t>(here.rail);
  fields.grh_required = here.port.grh_required ? 1 : 0;
  return fields;
}

}  // namespace

std::string why_unreachable(const ChosenPort& here, const PortFields& there, const std::string& name) {
  const auto both = [&] { return fmt::format("{} here, {} there", here.text(), name); };
  if ((there.ethernet == 1) != here.port.ethernet) return fmt::format("one end is Ethernet, the other InfiniBand: {}", both());
  constexpr int kPartition = 0x7fff;  // the other bit says only whether it is a full member, and two limited ones hear nothing
  if (!here.port.ethernet && (((there.pkey ^ here.pkey) & kPartition) != 0 || ((there.pkey | here.pkey) & ~kPartition) == 0))
    return fmt::format("the ends are in partitions {:#x} and {:#x}: {}", here.pkey, there.pkey, both());
  if (there.rail != here.rail && networks_differ(here.gid.bytes, here.network_bits, there.gid, there.network_bits))
    return fmt::format("rails {} and {} are networks of their own: {}", here.rail, there.rail, both());
  return {};
}

void VerbsTransport::Parts::open(const std::vector<ChosenPort>& ports) {
  Adapter& adapter = *adapters.emplace_back(std::make_unique<Adapter>(ports.front()));
  adapter.events.emplace(adapter.device.get(), lengths.completions() * std::max(1, options.peers), options.local_rank);
  doors.emplace(adapter.pd.get(), 2 * doors_bytes(static_cast<std::size_t>(std::max(1, options.peers))));
  adapter.slabs.emplace(adapter.pd.get(), options.heap, options.heap_expected);
  // A device that lists itself may yet have no queue pairs as they are needed here. Better known now than with the peers, or
  // at their first use.
  adapter.events->require(kWhole.completions());
  const QueuePair trial(adapter.pd.get(), adapter.events->queue_for(0), adapter.port, kWhole, 0, 0);
  for (std::size_t i = 1; i < ports.size(); ++i) {
    try {
      open_another(ports[i]);
    } catch (const Error& error) {
      logger().info("{} isn't used beside {}: {}", ports[i].port.text(), ports.front().port.text(), error.what());
    }
  }
}

void VerbsTransport::Parts::open_another(const ChosenPort& port) {
  auto adapter = std::make_unique<Adapter>(port);
  adapter->events.emplace(adapter->device.get(), kPayloads.completions(), options.local_rank);
  adapter->slabs.emplace(adapter->pd.get(), options.heap, options.heap_expected);
  adapter->events->require(kPayloads.completions());
  const QueuePair trial(adapter->pd.get(), adapter->events->queue_for(0), adapter->port, kPayloads, 0, 0);
  if (!wake) wake = posix::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {first().events->descriptor(), adapter->events->descriptor()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(wake.get(), EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST)
      throw system_error(Cause::refused, "verbs: epoll_ctl", errno);
  }
  doors->share(adapter->pd.get());
  adapters.push_back(std::move(adapter));
}

VerbsTransport::VerbsTransport(const VerbsOptions& options) : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  parts.options = options;
  const DeviceChoice choice = DeviceChoice::parse(options.device);
  try {
    std::vector<ChosenPort> ports = choose_ports(list_ports(), choice, {options.local_rank, std::max(1, options.local_ranks)},
                                                 machine::numa_node_of_this_thread());
    parts.limits = RetryLimits::of(choice.settings, options.timeout_ns);
    parts.pairs = static_cast<std::size_t>(std::max(1, choice.settings.pairs));
    const auto shortage = [&] {
      return locked_memory_shortage(options.peers, std::min(options.heap.size(), options.heap_expected), ports.size(),
                                    parts.pairs);
    };
    for (std::string why = shortage(); ports.size() > 1 && !why.empty(); why = shortage()) {
      logger().info("{} isn't used beside {}: {}", ports.back().port.text(), ports.front().port.text(), why);
      ports.pop_back();
    }
    if (!choice.names_ports()) parts.why_not = shortage();
    if (parts.why_not.empty()) {
      parts.lengths = options.peers > whole_up_to(choice.settings) ? kSmall : kWhole;
      parts.open(ports);
      parts.first_packet = std::random_device()() & 0xffffff;
    }
  } catch (const Error& error) {
    if (choice.names_ports()) throw;
    parts.why_not = error.what();
    parts.doors.reset();
    parts.adapters.clear();
  }
  if (!parts.why_not.empty()) {
    if (!options.place.empty()) parts.why_not = fmt::format("{}: {}", options.place, parts.why_not);
    return;
  }
  parts.named = choice.names_ports();
  parts.peers.resize(static_cast<std::size_t>(std::max(0, options.peers)));
}

VerbsTransport::~VerbsTransport() = default;

const std::string& VerbsTransport::why_not() const { return parts_->why_not; }
std::string VerbsTransport::chosen() const {
  if (!parts_->why_not.empty()) return {};
  std::string text = parts_->first().port.text();
  for (std::size_t i = 1; i < parts_->adapters.size(); ++i) text += "; with " + parts_->adapters[i]->port.text();
  return text;
}
int VerbsTransport::ways(int number) const { return std::popcount(peer(number).carrying()); }

// --- peers -------------------------------------------------------------------------------------------------------------------

VerbsTransport::Peer& VerbsTransport::peer(int number) const {
  assert(number >= 0 && static_cast<std::size_t>(number) < parts_->peers.size());
  return *parts_->peers[static_cast<std::size_t>(number)];
}
VerbsTransport::VerbsSend& VerbsTransport::outgoing(LaneId lane) const {
  return peer(lane.peer).out[static_cast<std::size_t>(lane.stream)];
}
VerbsTransport::VerbsReceive& VerbsTransport::incoming(LaneId lane) const {
  return peer(lane.peer).in[static_cast<std::size_t>(lane.stream)];
}

std::vector<std::byte> VerbsTransport::address(int number) {
  Parts& parts = *parts_;
  Address address;
  address.why_not = parts.why_not;
  if (!parts.why_not.empty()) return address.encode();
  std::unique_ptr<Peer>& slot = parts.peers.at(static_cast<std::size_t>(number));
  if (!slot) {
    try {
      slot = std::make_unique<Peer>(parts.first(), parts.lengths, number, parts.first_packet);
    } catch (const Error& error) {
      if (parts.named) throw;
      parts.unmade[number] =
          parts.options.place.empty() ? error.what() : fmt::format("{}: {}", parts.options.place, error.what());
    }
  }
  if (slot) address.own = {slot->first.number(), static_cast<std::uint32_t>(number)};
  if (!parts.unmade.empty()) address.why_not = parts.unmade.begin()->second;  // for those that have no queue pair
  address.first_packet = parts.first_packet;
  address.doors = reinterpret_cast<std::uint64_t>(parts.doors->data());
  address.small = parts.has_small_pairs() ? 1 : 0;
  address.pairs = static_cast<std::uint8_t>(parts.pairs);
  static_cast<PortFields&>(address) = fields_of(parts.first().port, parts.doors->remote_key());
  address.port = parts.first().port.text();
  for (std::size_t i = 1; i < parts.adapters.size(); ++i) {
    const ChosenPort& port = parts.adapters[i]->port;
    OtherAdapter& other = address.rest.emplace_back();
    other.port = fields_of(port, parts.doors->remote_key(i));
    const std::string name = port.port.text();
    std::memcpy(other.name, name.data(), std::min(name.size(), sizeof other.name - 1));
  }
  return address.encode();
}

Reach VerbsTransport::can_reach(int number, std::span<const std::byte> blob) const {
  if (!parts_->why_not.empty()) return {false, parts_->why_not};
  if (const auto unmade = parts_->unmade.find(number); unmade != parts_->unmade.end()) return {false, unmade->second};
  const std::optional<Address> address = Address::decode(blob);
  if (!address) return {false, "the peer's address is none of this version's"};
  if (!address->why_not.empty()) {
    // If places were given, the reasons of both ends begin with them.
    return {false, parts_->options.place.empty() ? "at the peer: " + address->why_not : address->why_not};
  }
  const ChosenPort& here = parts_->first().port;
  if (std::string why = why_unreachable(here, *address, address->port); !why.empty()) return {false, std::move(why)};
  std::string why = fmt::format("RDMA: {} to {}", here.text(), address->port);
  for (const int other : common_adapters(*address))
    why += fmt::format(", with {} to {}", parts_->adapters[static_cast<std::size_t>(other)]->port.port.text(),
                       address->by(other).port);
  return {true, std::move(why)};
}

void VerbsTransport::connect(int number, std::span<const std::byte> blob) {
  if (const Reach reach = can_reach(number, blob); !reach.possible) throw Error(Cause::refused, "verbs: " + reach.why, number);
  Parts& parts = *parts_;
  if (!parts.peers.at(static_cast<std::size_t>(number))) address(number);
  Peer& to = peer(number);
  to.address = *Address::decode(blob);
  to.give_up_ns = posix::now_ns() + parts.options.timeout_ns / 2;
  to.growth.needed = parts.has_small_pairs() || to.address.small != 0;
  if (!to.growth.needed) to.pair = &to.first;
  list_others(to);
  link(to);
}

void VerbsTransport::link(Peer& to) {
  const bool last_try = posix::now_ns() >= to.give_up_ns;
  to.linked = to.first.connect(to.address, to.address.own.queue_pair, parts_->first().port, parts_->limits, last_try);
  to.ready = to.was_ready = to.linked && !to.growth.needed;
}

bool VerbsTransport::linked(int number) {
  Peer& to = peer(number);
  if (!to.linked && to.give_up_ns != 0) link(to);
  return to.linked;
}

bool VerbsTransport::connected(int number) {
  Peer& to = peer(number);
  if (!linked(number)) return false;
  if (to.broken.empty() && to.first_probe == 0) {
    // First a small write, then one that fills a packet. Nobody reads them.
    const Region& doors = *parts_->doors;
    const QueuePair::Target there{to.address.doors, to.address.doors_key};
    to.first_probe = to.first.write({doors.data(), kProbeBytes, doors.local_key()}, there, std::nullopt, true);
    if (to.first_probe != 0) {
      const std::size_t packet = std::min(packet_bytes(parts_->first().port, to.address), kFullProbeBytes);
      to.probe = to.first.write({doors.data(), packet, doors.local_key()}, there, Immediate{News::credit, 0, 0}, true);
    }
    if (to.probe == 0) break_lanes(to, to.first.post_error());
  }
  progress();
  return to.broken.empty() && to.first.is_completed(to.probe);
}

std::string VerbsTransport::broken(int number) const {
  const Peer& to = peer(number);
  return to.broken.empty() ? std::string() : why_broken(to);
}

void VerbsTransport::forget(int number) {
  std::unique_ptr<Peer>& slot = parts_->peers.at(static_cast<std::size_t>(number));
  std::erase(parts_->touched, slot.get());
  std::erase(parts_->linking, slot.get());
  slot.reset();
}

// --- memory ------------------------------------------------------------------------------------------------------------------

void VerbsTransport::register_memory(std::span<std::byte> memory) {
  for (const std::unique_ptr<Adapter>& each : parts_->adapters) {
    try {
      each->slabs->add(memory);
    } catch (const Error& error) {
      if (each == parts_->adapters.front()) throw;
      logger().info("{}: {}; payloads there go by the other ports", each->port.port.text(), error.what());
    }
  }
}

std::span<std::byte> VerbsTransport::registration_of(std::span<std::byte> memory) const {
  return parts_->adapters.empty() ? memory : parts_->first().slabs->around(memory);
}

bool VerbsTransport::is_registered(std::span<const std::byte> memory) const {
  return !parts_->adapters.empty() && parts_->first().slabs->covers(memory);
}

std::size_t VerbsTransport::plain_limit() const { return kEagerBytes; }

}  // namespace tsprun::detail::verbs
