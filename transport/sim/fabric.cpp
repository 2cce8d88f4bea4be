// Links in turns, quantum by quantum.
#include "transport/sim/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tsprun::detail::sim {

namespace {

/// Bytes of a quantum: small enough that transfers which share a link end nearly together, large enough that there are few.
double quantum_of(double bytes) { return std::max(bytes / 8, 262144.0); }

// Events: which transfer, and what of it is over, or begins; kLinkFree: which link.
constexpr std::uint64_t kLinkFree = 0;
constexpr std::uint64_t kQuantumThere = 1;
constexpr std::uint64_t kArrived = 2;
constexpr std::uint64_t kNextLink = 3;
constexpr std::uint64_t kLeavesSpine = 4;  // of the first that does
constexpr std::uint64_t kKinds = 5;

}  // namespace

Fabric::Fabric(Timeline& timeline, const FabricShape& shape) : timeline_(timeline), shape_(shape) {
  const int per_node = shape.ranks_per_node;
  if (shape.links_within) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (int other = 0; other < per_node; ++other) add_link("link within the node", shape.within_bytes_per_s);
    }
  } else {
    for (int rank = 0; rank < shape.ranks; ++rank) add_link("port out of the GPU", shape.within_bytes_per_s);
    for (int rank = 0; rank < shape.ranks; ++rank) add_link("port into the GPU", shape.within_bytes_per_s);
  }
  const int nodes = (shape.ranks + per_node - 1) / per_node;
  nics_out_ = static_cast<std::uint32_t>(links_.size());
  for (int nic = 0; nic < nodes * shape.nics_per_node; ++nic) add_link("NIC out", shape.nic_bytes_per_s);
  nics_in_ = static_cast<std::uint32_t>(links_.size());
  for (int nic = 0; nic < nodes * shape.nics_per_node; ++nic) add_link("NIC in", shape.nic_bytes_per_s);
  if (shape.nodes_per_leaf == 0) return;
  const int leaves = ((nodes - 1) / shape.nodes_per_leaf + 1) * (shape.leaf_per_rail ? shape.nics_per_node : 1);
  leaves_up_ = static_cast<std::uint32_t>(links_.size());
  for (int i = 0; i < leaves; ++i) add_link("leaf to spine", shape.leaf_bytes_per_s);
  leaves_down_ = static_cast<std::uint32_t>(links_.size());
  for (int i = 0; i < leaves; ++i) add_link("spine to leaf", shape.leaf_bytes_per_s);
  spine_ = add_link("spine", shape.spine_bytes_per_s);
  links_[spine_].times = shape.units;
  if (!std::isinf(shape.spine_bytes_per_s)) shared_spine_.emplace(shape.spine_bytes_per_s / links_[spine_].times);
}

std::uint32_t Fabric::add_link(std::string_view kind, double bytes_per_s) {
  links_.push_back({.kind = kind, .bytes_per_s = bytes_per_s});
  ports_.emplace_back();
  return static_cast<std::uint32_t>(links_.size() - 1);
}

std::string Fabric::describe(std::size_t link) const {
  const auto per_node = static_cast<std::size_t>(shape_.ranks_per_node);
  if (shape_.links_within && link < nics_out_) {
    const std::size_t from = link / per_node;
    return fmt::format("{} {} to {}", links_[link].kind, from, from / per_node * per_node + link % per_node);
  }
  std::size_t first = link;  // of its kind
  while (first > 0 && links_[first - 1].kind == links_[link].kind) --first;
  return fmt::format("{} {}", links_[link].kind, link - first);
}

std::uint32_t Fabric::nic(int rank) const {
  const int node = rank / shape_.ranks_per_node;
  return static_cast<std::uint32_t>(node * shape_.nics_per_node + rank % shape_.ranks_per_node % shape_.nics_per_node);
}

/// Returns the leaf of a rank's NIC, also of a rank beyond the fabric.
std::uint32_t Fabric::leaf(int rank) const {
  const int group = rank / shape_.ranks_per_node / shape_.nodes_per_leaf;
  const int rail = rank % shape_.ranks_per_node % shape_.nics_per_node;
  return static_cast<std::uint32_t>(shape_.leaf_per_rail ? group * shape_.nics_per_node + rail : group);
}

Way Fabric::way(int from, int to) const {
  Way way = usual_way(from, to);
  for (const SlowWay& slow : shape_.slow) {
    if (std::minmax(from, to) == std::minmax(slow.one, slow.other)) way.stretch *= slow.factor;
  }
  return way;
}

Way Fabric::usual_way(int from, int to) const {
  const int per_node = shape_.ranks_per_node;
  if (from / per_node == to / per_node) {
    if (shape_.links_within)
      return {
          .links = {static_cast<std::uint32_t>(from * per_node + to % per_node)}, .hops = 1, .latency = shape_.within_latency};
    return {.links = {static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(shape_.ranks + to)},
            .hops = 2,
            .latency = shape_.within_latency};
  }
  const bool changes_rails = from % per_node % shape_.nics_per_node != to % per_node % shape_.nics_per_node;
  const std::uint32_t out = nics_out_ + nic(from);
  const std::uint32_t in = nics_in_ + nic(to % shape_.ranks);
  const double stretch = changes_rails ? shape_.rail_crossing : 1;
  if (shape_.nodes_per_leaf == 0 || leaf(from) == leaf(to))
    return {.links = {out, in}, .hops = 2, .latency = shape_.nic_latency, .stretch = stretch};
  return {.links = {out, leaves_up_ + leaf(from), spine_, leaves_down_ + leaf(to % shape_.ranks), in},
          .hops = 5,
          .latency = shape_.nic_latency + shape_.spine_latency,
          .stretch = stretch};
}

void Fabric::send(const Way& way, double bytes, Handler& handler, std::uint64_t what) {
  if (bytes == 0) {
    timeline_.add(way.latency, handler, what);
    return;
  }
  std::uint32_t number = static_cast<std::uint32_t>(transfers_.size());
  if (unused_.empty()) {
    transfers_.emplace_back();
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  transfers_[number] = {.way = way, .left = bytes, .quantum = quantum_of(bytes), .handler = &handler, .what = what};
  enter(number);
}

/// Puts a transfer in the queue of its first link.
void Fabric::enter(std::uint32_t transfer) {
  const std::uint32_t link = transfers_[transfer].way.links[0];
  Port& port = ports_[link];
  if (port.waiting.empty() && timeline_.now() >= port.carries_until) return carry(transfer);
  free_link(link);  // if it is: those that wait come first
  port.waiting.push_back(transfer);
  if (port.waiting.size() == 1) await_link(link);
}

/// Adds the event of a link that becomes free, unless it carries what comes back then for its next quantum.
void Fabric::await_link(std::uint32_t link) {
  const Port& port = ports_[link];
  if (!port.comes_back) timeline_.add_at(port.carries_until, *this, link * kKinds + kLinkFree);
}

/// Returns how long the transfer's quantum takes on the link that it has got to.
double Fabric::seconds_on_link(const Transfer& transfer) const {
  const Way& way = transfer.way;
  const Link& link = links_[way.links[transfer.hop]];
  const bool is_end = transfer.hop == 0 || transfer.hop + 1 == way.hops;
  return transfer.bytes * link.times * (is_end ? way.stretch : 1) / link.bytes_per_s;
}

/// Notes that the link that the transfer's quantum has got to carries it, beginning in so many seconds from now.
void Fabric::note(const Transfer& transfer, double begins, double seconds) {
  const std::uint32_t number = transfer.way.links[transfer.hop];
  Link& link = links_[number];
  const double bytes = transfer.bytes * link.times;
  if (rates_ != nullptr) rates_->carry(number, timeline_.now() + begins, timeline_.now() + begins + seconds, bytes);
  link.busy_seconds += seconds_on_link(transfer);
  link.bytes += bytes;
}

/// Carries the transfer's next quantum, beginning now.
void Fabric::carry(std::uint32_t number) {
  Transfer& transfer = transfers_[number];
  transfer.bytes = std::min(transfer.left, transfer.quantum);
  transfer.left -= transfer.bytes;
  transfer.hop = 0;
  const double out = seconds_on_link(transfer);
  note(transfer, 0, out);
  const std::uint32_t link = transfer.way.links[0];
  Port& port = ports_[link];
  port.carries_until = timeline_.now() + out;
  go_on(number, out);
  port.comes_back = transfer.left > 0 && transfer.hop + 1 == transfer.way.hops && transfer.there_at == port.carries_until;
  if (!port.waiting.empty()) await_link(link);
}

/// Lets a quantum go on behind the link on which it is. It will have crossed all so far in `there` seconds, and the next link can
/// carry its first bytes since `since` seconds from now.
void Fabric::go_on(std::uint32_t number, double there, double since) {
  Transfer& transfer = transfers_[number];
  const Way& way = transfer.way;
  const double now = timeline_.now();
  while (transfer.hop + 1 < way.hops) {
    const std::uint32_t link = way.links[++transfer.hop];
    if (link == spine_ && shared_spine_) return come_to_spine(number, there);
    Port& port = ports_[link];
    const double takes = seconds_on_link(transfer);
    const double begins = std::max({port.free_at - now, since, -takes});
    const double ends = begins + takes;
    note(transfer, begins, takes);
    port.free_at = now + ends;
    there = std::max(there, ends);
    // The links behind are taken when it gets to them: others may use them until then.
    if (begins <= 0 || transfer.hop + 1 == way.hops) continue;
    transfer.there_at = now + there;
    timeline_.add(begins, *this, number * kKinds + kNextLink);
    return;
  }
  transfer.there_at = now + there;
  if (transfer.left > 0) timeline_.add_at(transfer.there_at, *this, number * kKinds + kQuantumThere);
  else timeline_.add_at(transfer.there_at + way.latency, *this, number * kKinds + kArrived);
}

void Fabric::come_to_spine(std::uint32_t number, double there) {
  Transfer& transfer = transfers_[number];
  const double now = timeline_.now();
  transfer.there_at = now + there;
  transfer.came_at = now;
  const bool sleeps = shared_spine_->empty();
  shared_spine_->come(now, number, transfer.bytes);
  // The event that comes first finds out if it is early.
  if (sleeps || shared_spine_->next() < spine_event_at_) await_spine();
}

/// Adds the event of the next quantum that leaves the spine.
void Fabric::await_spine() {
  spine_event_at_ = shared_spine_->next();
  timeline_.add(std::max(0.0, spine_event_at_ - timeline_.now()), *this, ++spine_event_ * kKinds + kLeavesSpine);
}

/// Lets those go on that leave the spine now.
void Fabric::leave_spine() {
  const double now = timeline_.now();
  const double about_now = now * (1 + 1e-14);  // event times are rounded
  while (!shared_spine_->empty() && shared_spine_->next() <= about_now) {
    const std::uint32_t number = shared_spine_->leave();
    const Transfer& transfer = transfers_[number];
    const double since = transfer.came_at - now;
    note(transfer, since, -since);
    go_on(number, std::max(transfer.there_at - now, 0.0), since);
  }
  if (!shared_spine_->empty()) await_spine();
}

/// Lets the next of the transfers that wait for a first link have it, if it is free.
void Fabric::free_link(std::uint32_t link) {
  Port& port = ports_[link];
  if (port.waiting.empty() || timeline_.now() < port.carries_until) return;
  // The first transfer whose later links are free, if there is one: the others would only wait behind this link.
  auto next = std::ranges::find_if(port.waiting, [this](std::uint32_t other) {
    const Way& way = transfers_[other].way;
    return std::all_of(way.links.begin() + 1, way.links.begin() + way.hops,
                       [this](std::uint32_t later) { return ports_[later].free_at <= timeline_.now(); });
  });
  if (next == port.waiting.end()) next = port.waiting.begin();
  const std::uint32_t chosen = *next;
  port.waiting.erase(next);
  carry(chosen);
}

void Fabric::happen(std::uint64_t what) {
  if (what % kKinds == kLeavesSpine) {
    if (what / kKinds == spine_event_) leave_spine();  // else another was added after it, for an earlier time
    return;
  }
  if (what % kKinds == kLinkFree) return free_link(static_cast<std::uint32_t>(what / kKinds));
  const auto number = static_cast<std::uint32_t>(what / kKinds);
  Transfer& transfer = transfers_[number];
  switch (what % kKinds) {
    case kQuantumThere: enter(number); break;
    case kNextLink: go_on(number, transfer.there_at - timeline_.now()); break;
    default: {
      // The entry may be used again by what the handler sends.
      Handler& handler = *transfer.handler;
      const std::uint64_t of_handler = transfer.what;
      unused_.push_back(number);
      handler.happen(of_handler);
      break;
    }
  }
}

}  // namespace tsprun::detail::sim
