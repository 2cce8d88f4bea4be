// VerbsTransport's device, its memory, and how it is connected to peers; progress.cpp has what happens afterwards.
#include "transport/verbs/verbs_transport.h"

#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <random>

namespace tsprun::detail::verbs {

namespace {

/// Returns the number of peers up to which queue pairs are whole ones from the start. Beyond, idle peers would pin too much.
int whole_up_to(const Settings& settings) {
  constexpr int kPeers = 64;
  return settings.whole < 0 ? kPeers : settings.whole;
}

}  // namespace

VerbsTransport::VerbsTransport(const VerbsOptions& options) : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  parts.options = options;
  const DeviceChoice choice = DeviceChoice::parse(options.device);
  try {
    parts.port = choose_port(list_ports(), choice, options.local_rank, machine::numa_node_of_this_thread());
    parts.limits = RetryLimits::of(choice.settings, options.timeout_ns);
    if (!choice.names_ports())
      parts.why_not = locked_memory_shortage(options.peers, std::min(options.heap.size(), options.heap_expected));
    if (parts.why_not.empty()) {
      parts.device = open_device(parts.port.port.device);
      parts.pd.reset(library().alloc_pd(parts.device.get()));
      if (!parts.pd)
        throw system_error(Cause::refused, fmt::format("verbs: no protection domain on {}", parts.port.text()), errno);
      parts.lengths = options.peers > whole_up_to(choice.settings) ? kSmall : kWhole;
      parts.events.emplace(parts.device.get(), parts.lengths.completions() * std::max(1, options.peers), options.local_rank);
      parts.doors.emplace(parts.pd.get(), 2 * doors_bytes(static_cast<std::size_t>(std::max(1, options.peers))));
      parts.slabs.emplace(parts.pd.get(), options.heap, options.heap_expected);
      // A device that lists itself may yet have no queue pairs as they are needed here. Better known now than with the peers, or
      // at their first use.
      parts.events->require(kWhole.completions());
      const QueuePair trial(parts.pd.get(), parts.events->queue_for(0), parts.port, kWhole, 0, 0);
      parts.first_packet = std::random_device()() & 0xffffff;
    }
  } catch (const Error& error) {
    if (choice.names_ports()) throw;
    parts.why_not = error.what();
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
std::string VerbsTransport::chosen() const { return parts_->why_not.empty() ? parts_->port.text() : std::string(); }

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
      slot = std::make_unique<Peer>(parts.pd.get(), parts.events->queue_for(parts.lengths.completions()), parts.port,
                                    parts.lengths, number, parts.first_packet);
      parts.events->take(parts.lengths.completions());
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
  address.doors_key = parts.doors->remote_key();
  address.lid = parts.port.port.lid;
  address.mtu = parts.port.port.mtu;
  address.ethernet = parts.port.port.ethernet ? 1 : 0;
  std::copy(parts.port.gid.bytes.begin(), parts.port.gid.bytes.end(), address.gid);
  address.network_bits = static_cast<std::uint8_t>(parts.port.network_bits);
  address.rail = static_cast<std::uint8_t>(parts.port.rail);
  address.pkey = parts.port.pkey;
  address.grh_required = parts.port.port.grh_required ? 1 : 0;
  address.small = parts.has_small_pairs() ? 1 : 0;
  address.port = parts.port.text();
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
  if ((address->ethernet == 1) != parts_->port.port.ethernet) {
    return {false,
            fmt::format("one end is Ethernet, the other InfiniBand: {} here, {} there", parts_->port.text(), address->port)};
  }
  const ChosenPort& here = parts_->port;
  constexpr int kPartition = 0x7fff;  // the other bit says only whether it is a full member, and two limited ones hear nothing
  if (!here.port.ethernet &&
      (((address->pkey ^ here.pkey) & kPartition) != 0 || ((address->pkey | here.pkey) & ~kPartition) == 0)) {
    return {false, fmt::format("the ends are in partitions {:#x} and {:#x}: {} here, {} there", here.pkey, address->pkey,
                               here.text(), address->port)};
  }
  if (address->rail != here.rail && networks_differ(here.gid.bytes, here.network_bits, address->gid, address->network_bits)) {
    return {false, fmt::format("rails {} and {} are networks of their own: {} here, {} there", here.rail, address->rail,
                               here.text(), address->port)};
  }
  return {true, fmt::format("RDMA: {} to {}", parts_->port.text(), address->port)};
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
  link(to);
}

void VerbsTransport::link(Peer& to) {
  const bool last_try = posix::now_ns() >= to.give_up_ns;
  to.linked = to.first.connect(to.address, to.address.own.queue_pair, parts_->port, parts_->limits, last_try);
  to.ready = to.linked && !to.growth.needed;
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
      const std::size_t packet = std::min(to.packet_bytes(parts_->port), kFullProbeBytes);
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
  if (parts_->slabs) parts_->slabs->add(memory);
}

bool VerbsTransport::is_registered(std::span<const std::byte> memory) const {
  return parts_->slabs && parts_->slabs->covers(memory);
}

std::size_t VerbsTransport::plain_limit() const { return kEagerBytes; }

}  // namespace tsprun::detail::verbs
