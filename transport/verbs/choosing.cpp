// Chooses ports, GIDs and partitions from what a machine has, and compares networks of RoCE addresses.
#include "transport/cause.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"
#include "transport/verbs/wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>

namespace tsprun::detail::verbs {

namespace {

std::string describe(const Ports& found) {
  std::vector<std::string> bad;
  for (const BadDevice& each : found.bad) bad.push_back(each.why);
  if (found.ports.empty()) {
    return bad.empty() ? no_device() : fmt::format("no RDMA device works: {}", fmt::join(bad, "; "));
  }
  std::vector<std::string> words;
  for (const Port& port : found.ports) {
    std::vector<std::string> gids;
    for (const Gid& gid : port.gids) gids.push_back(fmt::format("{} = {} ({})", gid.index, gid.text(), name(gid.type)));
    words.push_back(fmt::format("{} ({}{}{}{}{})", port.text(), port.state, port.defect.empty() ? "" : ", can't be used: ",
                                port.defect, gids.empty() ? ", no GID" : ", GIDs ", fmt::join(gids, ", ")));
  }
  words.insert(words.end(), bad.begin(), bad.end());
  return fmt::format("here are: {}", fmt::join(words, "; "));
}

/// A port that may be used, or why it can't be.
struct Candidate {
  const Port* port;
  int gid = -1;  // the index that the option names
  std::string why_not{};
  ChosenPort chosen{};

  bool is_down() const { return !port->active; }
};

/// Looks for the GID and the partition of a candidate.
void fit(Candidate& candidate, const DeviceChoice& choice) {
  const Port& port = *candidate.port;
  const Settings& settings = choice.settings;
  const int index = candidate.gid >= 0 ? candidate.gid : settings.gid;
  const auto named = std::ranges::find(port.gids, index, &Gid::index);
  std::optional<Gid> gid;
  if (!port.active) candidate.why_not = "no active port";
  else if (!port.defect.empty()) candidate.why_not = fmt::format("{} can't be used: {}", port.text(), port.defect);
  else if (index >= 0 && named == port.gids.end()) candidate.why_not = fmt::format("no GID of index {}", index);
  else if (index >= 0) gid = *named;
  else if (port.ethernet) gid = choose_gid(port.gids, settings);
  else if (!port.gids.empty()) gid = port.gids.front();
  if (!candidate.why_not.empty()) return;
  if (!gid) {
    const bool foreign = std::ranges::any_of(port.gids, [](const Gid& each) { return each.foreign; });
    candidate.why_not = settings.roce >= 0 || settings.family >= 0 ? "no RoCE GID of the version and family that are wanted"
                        : foreign                                  ? "no RoCE v2 GID that is an address of this network namespace"
                                  : "no RoCE v2 GID but link-local ones: give the interface an IP address";
    return;
  }
  candidate.chosen = {.port = port, .gid = *gid, .settings = settings};
  if (!port.ethernet) {
    const std::optional<int> pkey = choose_pkey(port.pkeys, settings.pkey);
    if (!pkey) candidate.why_not = fmt::format("{} is no member of partition {:#x}", port.text(), settings.pkey);
    else if (!port.pkeys.empty()) candidate.chosen.pkey = port.pkeys[static_cast<std::size_t>(*pkey)];
    candidate.chosen.pkey_index = pkey.value_or(0);
  }
}

/// Bounds a port's MTU by what is asked for. `most`: in bytes; -1: nothing.
void bound_mtu(Port& port, int most) {
  while (most > 0 && port.mtu_bytes > most) {
    port.mtu_bytes /= 2;
    --port.mtu;
  }
}

/// Puts the candidates into the order in which this node's ranks take them. Ranks that are bound to a NUMA node take those that
/// are near, if there are any; a rank alone takes the others after them. Returns how many ranks divide them.
std::size_t share(std::vector<Candidate>& candidates, const DeviceChoice& choice, LocalRank rank, int near_node) {
  const auto is_near = [&](const Candidate& each) { return each.port->numa_node == near_node; };
  const auto works = [&](const Candidate& each) { return each.why_not.empty() && is_near(each); };
  auto ranks = static_cast<std::size_t>(rank.of);
  if (near_node < 0 || choice.names_ports() || std::ranges::none_of(candidates, works)) return ranks;
  const auto others = std::stable_partition(candidates.begin(), candidates.end(), is_near);
  if (ranks == 1) return 1;
  // Where the other ranks are bound isn't known: as many to each of the NUMA nodes that have ports.
  std::set<int> nodes;
  for (const Candidate& each : candidates) nodes.insert(each.port->numa_node);
  candidates.erase(others, candidates.end());
  return (ranks + nodes.size() - 1) / nodes.size();
}

}  // namespace

std::optional<Gid> choose_gid(const std::vector<Gid>& gids, const Settings& settings) {
  constexpr int kMostIndex = 255;  // a queue pair's address has 8 bits for it
  const GidType type = settings.roce == 1 ? GidType::roce_v1 : GidType::roce_v2;
  const Gid* six = nullptr;
  for (const Gid& gid : gids) {
    if (gid.type != type || gid.is_link_local() || gid.foreign || gid.index > kMostIndex) continue;
    if (gid.is_ipv4_mapped()) {
      if (settings.family != 6) return gid;
    } else if (six == nullptr && settings.family != 4) {
      six = &gid;
    }
  }
  return six != nullptr ? std::optional<Gid>(*six) : std::nullopt;
}

std::optional<int> choose_pkey(const std::vector<std::uint16_t>& keys, int wanted) {
  constexpr int kFullMember = 0x8000;
  for (std::size_t index = 0; index < keys.size(); ++index) {
    const int key = keys[index];
    if (wanted < 0 ? (key & kFullMember) != 0 : ((key ^ wanted) & (kFullMember - 1)) == 0) return static_cast<int>(index);
  }
  return wanted < 0 ? std::optional(0) : std::nullopt;
}

std::string unfitness(const Port& port, const DeviceChoice& choice) {
  Candidate candidate{.port = &port};
  fit(candidate, choice);
  if (candidate.why_not.empty() &&
      std::ranges::any_of(choice.left_out, [&](const PortName& out) { return out.is_of(port.device, port.number); }))
    return fmt::format("--rdma {} leaves it out", choice.text);
  return candidate.why_not;
}

ChosenPort choose_port(const Ports& found, const DeviceChoice& choice, int local_rank, int near_node) {
  return choose_ports(found, choice, {local_rank, std::numeric_limits<int>::max()}, near_node).front();
}

std::vector<ChosenPort> choose_ports(const Ports& found, const DeviceChoice& choice, LocalRank rank, int near_node) {
  const auto refuse = [&](const std::string& what) {
    return Error(Cause::refused,
                 fmt::format("{}{}: {}; {}", choice.text.empty() ? "verbs" : "--rdma ", choice.text, what, describe(found)));
  };
  std::vector<Candidate> candidates;
  for (const PortName& name : choice.named) {
    const auto broken = std::ranges::find(found.bad, name.device, &BadDevice::device);
    if (broken != found.bad.end()) throw Error(Cause::refused, fmt::format("--rdma {}: {}", choice.text, broken->why));
    const std::size_t before = candidates.size();
    for (const Port& port : found.ports) {
      if (name.is_of(port.device, port.number)) candidates.push_back({.port = &port, .gid = name.gid});
    }
    if (candidates.size() != before) continue;
    if (const std::string trouble = library_trouble(); !trouble.empty())
      throw Error(Cause::refused, fmt::format("--rdma {}: {}", choice.text, trouble));
    const bool port_alone = std::ranges::find(found.ports, name.device, &Port::device) != found.ports.end();
    throw refuse(port_alone                ? fmt::format("no port {} of {}", name.port, name.device)
                 : choice.named.size() > 1 ? fmt::format("no such device: {}", name.device)
                                           : "no such device");
  }
  if (!choice.names_ports()) {
    if (found.ports.empty()) throw Error(Cause::refused, describe(found));
    for (const Port& port : found.ports) {
      if (std::ranges::none_of(choice.left_out, [&](const PortName& out) { return out.is_of(port.device, port.number); }))
        candidates.push_back({.port = &port});
    }
    if (candidates.empty()) throw refuse("it leaves out all ports");
  }
  for (Candidate& each : candidates) fit(each, choice);
  if (std::ranges::none_of(candidates, [](const Candidate& each) { return each.why_not.empty(); })) {
    // What an active port lacks says more than that another one is down.
    const auto active = std::ranges::find_if(candidates, [](const Candidate& each) { return !each.is_down(); });
    throw refuse(active != candidates.end() ? active->why_not : candidates.front().why_not);
  }
  const auto has_another = [&](const Port& port) {
    return std::ranges::any_of(found.ports, [&](const Port& each) { return each.active && each.device == port.device; });
  };
  std::erase_if(candidates,
                [&](const Candidate& each) { return each.is_down() ? has_another(*each.port) : !each.why_not.empty(); });
  for (std::size_t rail = 0; rail < candidates.size(); ++rail) candidates[rail].chosen.rail = static_cast<int>(rail);
  const std::size_t sharers = share(candidates, choice, rank, near_node);
  const auto number = static_cast<std::size_t>(rank.number);
  std::size_t place = number % candidates.size();
  std::vector<const Candidate*> own;
  for (std::size_t i = number % sharers; own.empty() || i < candidates.size(); i += sharers)
    own.push_back(&candidates[(place + own.size() * sharers) % candidates.size()]);
  std::erase_if(own, [](const Candidate* each) { return !each->why_not.empty(); });
  while (own.empty() && !candidates[place].why_not.empty()) place = (place + 1) % candidates.size();
  if (own.empty()) own.push_back(&candidates[place]);
  std::vector<ChosenPort> chosen;
  for (const Candidate* each : own) {
    if (chosen.size() == static_cast<std::size_t>(choice.settings.nics < 0 ? kMostWays : choice.settings.nics)) break;
    chosen.push_back(each->chosen);
    chosen.back().network_bits = network_bits_of(each->chosen.gid);
    bound_mtu(chosen.back().port, choice.settings.mtu);
  }
  return chosen;
}

bool networks_differ(std::span<const std::uint8_t, 16> gid, int bits, std::span<const std::uint8_t, 16> other, int other_bits) {
  if (bits == 0 || other_bits == 0) return false;
  if (bits != other_bits) return true;
  for (int bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((gid[byte] ^ other[byte]) >> (7 - bit % 8) & 1) != 0) return true;
  }
  return false;
}

}  // namespace tsprun::detail::verbs
