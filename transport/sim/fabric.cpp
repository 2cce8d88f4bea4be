// Links in turns, quantum by quantum.
#include "transport/sim/fabric.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::sim {

namespace {

/// Bytes of a quantum: small enough that transfers which share a link end nearly together, large enough that there are few.
double quantum_of(double bytes) { return std::max(bytes / 8, 262144.0); }

// Events: which transfer, and what of it is over.
constexpr std::uint64_t kLinkFree = 0;
constexpr std::uint64_t kQuantumThere = 1;
constexpr std::uint64_t kArrived = 2;
constexpr std::uint64_t kKinds = 3;

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
    Way way{.latency = shape_.within_latency};
    if (shape_.links_within) {
      way.first = static_cast<std::uint32_t>(from * per_node + to % per_node);
    } else {
      way.first = static_cast<std::uint32_t>(from);
      way.second = static_cast<std::uint32_t>(shape_.ranks + to);
    }
    return way;
  }
  const bool changes_rails = from % per_node % shape_.nics_per_node != to % per_node % shape_.nics_per_node;
  return {.first = nics_out_ + nic(from),
          .second = nics_in_ + nic(to % shape_.ranks),
          .latency = shape_.nic_latency,
          .stretch = changes_rails ? shape_.rail_crossing : 1};
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
  Port& port = ports_[transfers_[transfer].way.first];
  if (port.busy) {
    port.waiting.push_back(transfer);
  } else {
    carry(transfer);
  }
}

/// Carries the transfer's next quantum, beginning now.
void Fabric::carry(std::uint32_t number) {
  Transfer& transfer = transfers_[number];
  const double bytes = std::min(transfer.left, transfer.quantum);
  transfer.left -= bytes;
  const double now = timeline_.now();
  const auto cross = [&](std::uint32_t link, double begins) {
    const double seconds = bytes * transfer.way.stretch / links_[link].bytes_per_s;
    if (rates_ != nullptr) rates_->carry(link, now + begins, now + begins + seconds, bytes);
    links_[link].busy_seconds += seconds;
    links_[link].bytes += bytes;
    return seconds;
  };
  const double out = cross(transfer.way.first, 0);
  ports_[transfer.way.first].busy = true;
  timeline_.add(out, *this, number * kKinds + kLinkFree);
  double there = out;
  if (transfer.way.second != Way::kNone) {
    Port& second = ports_[transfer.way.second];
    const double begins = std::max(second.free_at - now, 0.0);
    const double ends = begins + cross(transfer.way.second, begins);
    second.free_at = now + ends;
    there = std::max(out, ends);
  }
  timeline_.add(there, *this, number * kKinds + kQuantumThere);
}

void Fabric::happen(std::uint64_t what) {
  const auto number = static_cast<std::uint32_t>(what / kKinds);
  Transfer& transfer = transfers_[number];
  switch (what % kKinds) {
    case kLinkFree: {
      Port& port = ports_[transfer.way.first];
      port.busy = false;
      if (port.waiting.empty()) break;
      // The first transfer whose second link is free, if there is one: the others would only wait behind this link.
      auto next = std::ranges::find_if(port.waiting, [this](std::uint32_t other) {
        const std::uint32_t second = transfers_[other].way.second;
        return second == Way::kNone || ports_[second].free_at <= timeline_.now();
      });
      if (next == port.waiting.end()) next = port.waiting.begin();
      const std::uint32_t chosen = *next;
      port.waiting.erase(next);
      carry(chosen);
      break;
    }
    case kQuantumThere:
      if (transfer.left > 0) {
        enter(number);
      } else {
        timeline_.add(transfer.way.latency, *this, number * kKinds + kArrived);
      }
      break;
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
