// Packs and unpacks the address blob.
#include "transport/verbs/wire.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace tsprun::detail::verbs {

namespace {

constexpr std::size_t kTextBytes = 200;

template <class T>
void append(std::string& blob, const T& value) {
  blob.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Takes a value from the front of a blob. Returns false if that is too short.
template <class T>
bool take(std::span<const std::byte>& blob, T& value) {
  if (blob.size() < sizeof value) return false;
  std::memcpy(&value, blob.data(), sizeof value);
  blob = blob.subspan(sizeof value);
  return true;
}

bool is_sound(const PortFields& port) { return port.ethernet <= 1 && port.grh_required <= 1 && port.network_bits <= 128; }
bool has_mtu(const PortFields& port) { return port.mtu >= 1 && port.mtu <= 5; }

}  // namespace

Address Address::by(int adapter) const {
  Address other = *this;
  if (adapter == 0) return other;
  const OtherAdapter& found = rest[static_cast<std::size_t>(adapter) - 1];
  static_cast<PortFields&>(other) = found.port;
  other.port = found.name;
  return other;
}

std::vector<std::byte> Address::encode() const {
  JobFields job = *this;
  const PortFields& first = *this;
  job.others = static_cast<std::uint8_t>(std::min(rest.size(), static_cast<std::size_t>(kMostWays) - 1));
  job.port_bytes = static_cast<std::uint16_t>(std::min(port.size(), kTextBytes));
  job.why_not_bytes = static_cast<std::uint16_t>(std::min(why_not.size(), kTextBytes));
  std::string blob;
  append(blob, own);
  append(blob, job);
  append(blob, first);
  for (std::size_t i = 0; i < job.others; ++i) append(blob, rest[i]);
  blob.append(port, 0, job.port_bytes).append(why_not, 0, job.why_not_bytes);
  const auto bytes = std::as_bytes(std::span(blob));
  return {bytes.begin(), bytes.end()};
}

std::optional<Address> Address::decode(std::span<const std::byte> blob) {
  Address address;
  JobFields& job = address;
  PortFields& first = address;
  if (!take(blob, address.own) || !take(blob, job) || !take(blob, first)) return std::nullopt;
  const JobFields mine;
  if (job.magic != mine.magic || job.ring_bytes != mine.ring_bytes || job.port_bytes > kTextBytes ||
      job.why_not_bytes > kTextBytes || job.small > 1 || job.pairs < 1 || job.pairs > kMostWays || job.others >= kMostWays ||
      !is_sound(first) || address.own.queue_pair >> 24 != 0 || address.own.door >= kMostDoors || job.first_packet >> 24 != 0) {
    return std::nullopt;
  }
  address.rest.resize(job.others);
  for (OtherAdapter& each : address.rest) {
    if (!take(blob, each) || !is_sound(each.port) || !has_mtu(each.port)) return std::nullopt;
    each.name[sizeof each.name - 1] = 0;
  }
  const std::string_view texts(reinterpret_cast<const char*>(blob.data()), blob.size());
  if (texts.size() != std::size_t{job.port_bytes} + job.why_not_bytes) return std::nullopt;
  address.port = texts.substr(0, job.port_bytes);
  address.why_not = texts.substr(job.port_bytes);
  if (address.own.queue_pair != 0) address.why_not.clear();
  else if (address.why_not.empty()) return std::nullopt;
  if (address.why_not.empty() && !has_mtu(first)) return std::nullopt;
  return address;
}

}  // namespace tsprun::detail::verbs
