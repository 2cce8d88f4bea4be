// Packs and unpacks the address blob.
#include "transport/verbs/wire.h"

#include <algorithm>
#include <cstring>

namespace tsprun::detail::verbs {

namespace {

constexpr std::size_t kTextBytes = 200;

/// The layout of an address blob.
struct Blob {
  std::uint32_t magic;
  std::uint32_t region_bytes;  // differs if the peer has another layout of the region
  std::uint64_t region;
  std::uint32_t queue_pair;
  std::uint32_t first_packet;
  std::uint32_t region_key;
  std::uint16_t lid;
  std::uint8_t mtu;
  std::uint8_t ethernet;
  std::uint8_t gid[16];
  std::uint8_t network_bits;
  std::uint8_t rail;
  std::uint16_t padding;
  std::uint16_t port_length;
  std::uint16_t why_not_length;
  char port[kTextBytes];
  char why_not[kTextBytes];
};
static_assert(sizeof(Blob) == 56 + 2 * kTextBytes);
constexpr std::uint32_t kBlobMagic = 0x32567354;  // "TsV2"

}  // namespace

std::vector<std::byte> Address::encode() const {
  Blob blob{};
  blob.magic = kBlobMagic;
  blob.region_bytes = kRegionBytes;
  blob.region = region;
  blob.queue_pair = queue_pair;
  blob.first_packet = first_packet;
  blob.region_key = region_key;
  blob.lid = lid;
  blob.mtu = mtu;
  blob.ethernet = ethernet ? 1 : 0;
  std::memcpy(blob.gid, gid, sizeof gid);
  blob.network_bits = network_bits;
  blob.rail = rail;
  blob.port_length = static_cast<std::uint16_t>(std::min(port.size(), kTextBytes));
  blob.why_not_length = static_cast<std::uint16_t>(std::min(why_not.size(), kTextBytes));
  std::memcpy(blob.port, port.data(), blob.port_length);
  std::memcpy(blob.why_not, why_not.data(), blob.why_not_length);
  const auto* bytes = reinterpret_cast<const std::byte*>(&blob);
  return {bytes, bytes + sizeof blob};
}

std::optional<Address> Address::decode(std::span<const std::byte> bytes) {
  Blob blob;
  if (bytes.size() != sizeof blob) return std::nullopt;
  std::memcpy(&blob, bytes.data(), sizeof blob);
  if (blob.magic != kBlobMagic || blob.region_bytes != kRegionBytes || blob.port_length > kTextBytes ||
      blob.why_not_length > kTextBytes || blob.ethernet > 1 || blob.network_bits > 128 || blob.queue_pair >> 24 != 0 ||
      blob.first_packet >> 24 != 0) {
    return std::nullopt;
  }
  Address address;
  address.why_not.assign(blob.why_not, blob.why_not_length);
  if (address.why_not.empty() && (blob.mtu < 1 || blob.mtu > 5)) return std::nullopt;
  address.region = blob.region;
  address.queue_pair = blob.queue_pair;
  address.first_packet = blob.first_packet;
  address.region_key = blob.region_key;
  address.lid = blob.lid;
  address.mtu = blob.mtu;
  address.ethernet = blob.ethernet != 0;
  std::memcpy(address.gid, blob.gid, sizeof blob.gid);
  address.network_bits = blob.network_bits;
  address.rail = blob.rail;
  address.port.assign(blob.port, blob.port_length);
  return address;
}

}  // namespace tsprun::detail::verbs
