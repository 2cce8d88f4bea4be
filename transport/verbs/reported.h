// What a device and its ports report of themselves, checked before it is used: a number that can't be true would become a message
// of no bytes that is posted for ever, or a loop without an end.
#pragma once

#include <cstdint>
#include <infiniband/verbs.h>
#include <string>

namespace tsprun::detail::verbs {

/// Returns why no device of this kind can be used; empty: it may be. Reliable connections whose peers are named by GIDs are those
/// of InfiniBand and RoCE. `device`: its name.
std::string device_defect(const std::string& device, ibv_transport_type transport);

/// Returns why a port can't be used; empty: nothing that it reports is in the way. Ports that aren't active have none.
std::string port_defect(const ibv_port_attr& reported);

/// Returns a port's active MTU in bytes; 0: what it reports is no ibv_mtu.
int mtu_bytes_of(const ibv_port_attr& reported);

/// Returns a port's rate in 10⁹ bits per second, all lanes together; 0: what it reports is no rate.
double gbps_of(const ibv_port_attr& reported);

}  // namespace tsprun::detail::verbs
