// Compares what is reported with what the transport's messages need.
#include "transport/verbs/reported.h"

#include "transport/verbs/wire.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

namespace tsprun::detail::verbs {

namespace {

/// Returns the bits of an enumerator, which may be none that the header names.
template <class Enum>
std::uint32_t number_of(const Enum& reported) {
  std::uint32_t number = 0;
  static_assert(sizeof number == sizeof reported);
  std::memcpy(&number, &reported, sizeof number);
  return number;
}

}  // namespace

std::string device_defect(const std::string& device, ibv_transport_type transport) {
  switch (transport) {
    case IBV_TRANSPORT_IB: return {};
    case IBV_TRANSPORT_IWARP:
      return fmt::format("device {} speaks iWARP, which has no GIDs that are RoCE addresses and connects by librdmacm alone",
                         device);
    default:
      return fmt::format("device {} has no reliable connections of InfiniBand or RoCE (its transport is of type {})", device,
                         static_cast<int>(transport));
  }
}

std::string port_defect(const ibv_port_attr& reported) {
  if (reported.state != IBV_PORT_ACTIVE) return {};
  if (mtu_bytes_of(reported) == 0) return fmt::format("its MTU is of the unknown number {}", number_of(reported.active_mtu));
  if (reported.max_msg_sz < kEntryBytes)
    return fmt::format("its messages have at most {} bytes, of {} that are needed", reported.max_msg_sz, kEntryBytes);
  return {};
}

int mtu_bytes_of(const ibv_port_attr& reported) {
  const std::uint32_t mtu = number_of(reported.active_mtu);
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

double gbps_of(const ibv_port_attr& reported) {
  // As the header of the kernel's interface numbers them: a bit for each.
  constexpr std::array<double, 8> kLane = {2.5, 5, 10, 10, 14, 25, 50, 100};
  constexpr std::array<int, 5> kLanes = {1, 4, 8, 12, 2};
  if (!std::has_single_bit(reported.active_speed) || !std::has_single_bit(reported.active_width)) return 0;
  const auto speed = static_cast<std::size_t>(std::countr_zero(reported.active_speed));
  const auto width = static_cast<std::size_t>(std::countr_zero(reported.active_width));
  return width < kLanes.size() ? kLane[speed] * kLanes[width] : 0;
}

}  // namespace tsprun::detail::verbs
