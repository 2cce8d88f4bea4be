// Compares what is reported with what the transport's messages need.
#include "transport/verbs/reported.h"

#include "transport/verbs/wire.h"

#include <fmt/format.h>

namespace tsprun::detail::verbs {

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
  if (mtu_bytes_of(reported) == 0)
    return fmt::format("its MTU is of the unknown number {}", static_cast<int>(reported.active_mtu));
  if (reported.max_msg_sz < kEntryBytes)
    return fmt::format("its messages have at most {} bytes, of {} that are needed", reported.max_msg_sz, kEntryBytes);
  return {};
}

int mtu_bytes_of(const ibv_port_attr& reported) {
  const bool known = reported.active_mtu >= IBV_MTU_256 && reported.active_mtu <= IBV_MTU_4096;
  return known ? 128 << reported.active_mtu : 0;
}

}  // namespace tsprun::detail::verbs
