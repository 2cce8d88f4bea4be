// The RDMA device, port and address (GID) that a rank uses: the list of what this machine has, and the choice from it.
#pragma once

#include "transport/verbs/choice.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ibv_context;

namespace tsprun::detail::verbs {

/// Protocol to which a GID belongs.
enum class GidType : std::uint8_t { infiniband, roce_v1, roce_v2 };
/// Returns "InfiniBand", "RoCE v1" or "RoCE v2".
std::string_view name(GidType type);

/// A row of a port's GID table. A GID is an address of 128 bits; over RoCE it is an IP address of the interface.
struct Gid {
  std::array<std::uint8_t, 16> bytes{};
  int index = 0;
  GidType type = GidType::infiniband;
  bool foreign = false;  ///< a RoCE address that no interface of this network namespace has: another container's

  /// Returns the GID as an IPv6 address; IPv4-mapped ones as "::ffff:10.77.0.1".
  std::string text() const;
  bool is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }
  bool is_ipv4_mapped() const;
};

/// Port of a device, as found.
struct Port {
  std::string device;  ///< "rxe0", "mlx5_0"
  int number = 1;
  bool active = false;
  std::string state;   ///< "PORT_ACTIVE", "PORT_DOWN", …
  std::string defect;  ///< why it can't be used although it is active (port_defect()); empty: it can
  bool ethernet = false;
  int mtu_bytes = 0;            ///< active path MTU
  std::uint8_t mtu = 0;         ///< the same as an ibv_mtu: 1 = 256 … 5 = 4096 bytes
  std::uint16_t lid = 0;        ///< address within an InfiniBand subnet
  std::uint32_t max_bytes = 0;  ///< largest message, in bytes
  bool grh_required = false;    ///< packets need a global routing header even within the subnet
  std::vector<Gid> gids;
  std::vector<std::uint16_t> pkeys;  ///< partitions, by index; bit 15: full member
  double gbps = 0;                   ///< rate in 10⁹ bits per second; 0: not known
  std::string firmware;
  int numa_node = -1;       ///< of the device; -1: not known, or the machine has one
  int max_queue_pairs = 0;  ///< of the device
  int max_completions = 0;  ///< in one queue

  std::string text() const;  ///< "rxe0:1"
};

/// A port with the GID by which peers reach it; on InfiniBand the GID of index 0.
struct ChosenPort {
  Port port;
  Gid gid;
  int rail =
      0;  ///< index among the ports to choose from, those that are down included; ports of one index on all nodes are a rail
  int network_bits = 0;  ///< length of the network prefix in the GID, in bits; 0: not known
  int pkey_index = 0;
  std::uint16_t pkey = 0xffff;
  Settings settings{};
  std::string text() const;  ///< "rxe0 port 1, GID 1 ::ffff:10.77.0.1 (RoCE v2), MTU 4096"
};

/// A device that exists, but can't be used.
struct BadDevice {
  std::string device;
  std::string why;  ///< "device mlx5_1 can't be opened: Permission denied"
};

/// Devices of this machine.
struct Ports {
  std::vector<Port> ports;     ///< of devices that can be opened, in natural_order(), so that all nodes number rails alike
  std::vector<BadDevice> bad;  ///< devices that can't be opened or queried
};

/// Lists all ports of all devices. Empty without RDMA devices, the kernel's support for them, or libibverbs. Never throws because
/// of a device: see Ports::bad.
Ports list_ports();

/// Lists the ports of an open device or, if it can't be queried, the device with the reason.
Ports ports_of(ibv_context* context);

/// Returns true if this machine has an RDMA device in any state. Opens none.
bool any_device();

/// Returns the sentence for a machine where list_ports() finds nothing: there is no device, or libibverbs is missing.
std::string no_device();

/// Returns true if one name stands before another, numbers in them compared as numbers: "mlx5_2" before "mlx5_10".
bool natural_order(std::string_view name, std::string_view other);

/// Returns the RoCE GID to use, of the version and family that the settings want: the first IPv4-mapped one, else the first other
/// one, of those that are neither link-local nor foreign. Nothing if the port has no such GID.
std::optional<Gid> choose_gid(const std::vector<Gid>& gids, const Settings& settings = {});

/// Returns the index of the partition key to use: of the one that is wanted, which counts without its bit 15, else of the first
/// full member, else 0. Nothing if the one that is wanted isn't there. `wanted`: -1: none.
std::optional<int> choose_pkey(const std::vector<std::uint16_t>& keys, int wanted);

/// Returns why this port can't be used under `choice`; empty: it can. Whether the choice names it doesn't count.
std::string unfitness(const Port& port, const DeviceChoice& choice);

/// Returns the port for local rank i: the i-th, modulo their number, of the ports that `choice` names or, if it names none, of
/// those that it doesn't leave out; if that port is down, the next. A port that is down has its place among them, lest its loss
/// shift the others, unless it is another port of a device that has an active one. `near_node`: NUMA node that this process is
/// bound to: if ports are there, only those are taken in turn; -1: none. Throws Error(refused), listing what this machine has, if
/// the choice names a device, port or GID that doesn't exist or can't be used, or if there is nothing to choose from. Devices
/// that can't be opened are named with their reason.
ChosenPort choose_port(const Ports& found, const DeviceChoice& choice, int local_rank, int near_node = -1);

/// A rank of this node, and how many ranks that has.
struct LocalRank {
  int number = 0;
  int of = 1;
};

/// Returns the ports of a rank: first that of choose_port(), then those that the node's ranks leave it when they divide all
/// ports, which the i-th of R ranks does by taking the i-th and every R-th after it; ranks that are bound to a NUMA node divide
/// its ports. Of these only such as work, and as many in all as the settings allow. A rank alone gets all. Throws as
/// choose_port().
std::vector<ChosenPort> choose_ports(const Ports& found, const DeviceChoice& choice, LocalRank rank, int near_node = -1);

/// Returns true if two GIDs are known to be in different networks; `bits` and `other_bits` are the lengths of their network
/// prefixes. False if either is 0, not known.
bool networks_differ(std::span<const std::uint8_t, 16> gid, int bits, std::span<const std::uint8_t, 16> other, int other_bits);

/// Returns the length of the network prefix of a RoCE GID, which is an IP address of an interface of this machine. 0: no
/// interface has that address.
int network_bits_of(const Gid& gid);

/// Deleter of a Device.
struct CloseDevice {
  void operator()(ibv_context* context) const;
};
/// An open device; closed by its owner.
using Device = std::unique_ptr<ibv_context, CloseDevice>;

/// Opens a device by name. Throws Error(refused) if it has gone or can't be opened.
Device open_device(const std::string& name);

}  // namespace tsprun::detail::verbs
