// Packs and unpacks the address blob.
#include "transport/verbs/wire.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace tsprun::detail::verbs {

namespace {
constexpr std::size_t kTextBytes = 200;
}

std::vector<std::byte> Address::encode() const {
  AddressFields fields = *this;
  fields.port_bytes = static_cast<std::uint16_t>(std::min(port.size(), kTextBytes));
  fields.why_not_bytes = static_cast<std::uint16_t>(std::min(why_not.size(), kTextBytes));
  std::string blob(reinterpret_cast<const char*>(&own), sizeof own);
  blob.append(reinterpret_cast<const char*>(&fields), sizeof fields);
  blob.append(port, 0, fields.port_bytes).append(why_not, 0, fields.why_not_bytes);
  const auto bytes = std::as_bytes(std::span(blob));
  return {bytes.begin(), bytes.end()};
}

std::optional<Address> Address::decode(std::span<const std::byte> blob) {
  Address address;
  AddressFields& fields = address;
  if (blob.size() < sizeof address.own + sizeof fields) return std::nullopt;
  std::memcpy(&address.own, blob.data(), sizeof address.own);
  blob = blob.subspan(sizeof address.own);
  std::memcpy(&fields, blob.data(), sizeof fields);
  const std::string_view texts(reinterpret_cast<const char*>(blob.data()) + sizeof fields, blob.size() - sizeof fields);
  const AddressFields mine;
  if (fields.magic != mine.magic || fields.ring_bytes != mine.ring_bytes || fields.port_bytes > kTextBytes ||
      fields.why_not_bytes > kTextBytes || texts.size() != std::size_t{fields.port_bytes} + fields.why_not_bytes ||
      fields.ethernet > 1 || fields.grh_required > 1 || fields.small > 1 || fields.network_bits > 128 ||
      address.own.queue_pair >> 24 != 0 || address.own.door >= kMostDoors || fields.first_packet >> 24 != 0) {
    return std::nullopt;
  }
  address.port = texts.substr(0, fields.port_bytes);
  address.why_not = texts.substr(fields.port_bytes);
  if (address.own.queue_pair != 0) address.why_not.clear();
  else if (address.why_not.empty()) return std::nullopt;
  if (address.why_not.empty() && (fields.mtu < 1 || fields.mtu > 5)) return std::nullopt;
  return address;
}

}  // namespace tsprun::detail::verbs
