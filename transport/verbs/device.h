// Which RDMA device, port and address (GID) a rank uses: the list of what is there, and the choice from it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ibv_context;

namespace tsprun::verbs {

enum class GidType : std::uint8_t { infiniband, roce_v1, roce_v2 };
std::string_view name(GidType type);

/// A row of a port's GID table.
struct Gid {
  std::array<std::uint8_t, 16> bytes{};
  int index = 0;
  GidType type = GidType::infiniband;

  /// As IPv6 writes it; IPv4-mapped ones as "::ffff:10.77.0.1".
  std::string text() const;
  bool is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }
  bool is_ipv4_mapped() const;
};

/// One port of one device, as found.
struct Port {
  std::string device;  ///< "rxe0", "mlx5_0"
  int number = 1;
  bool active = false;
  std::string state;  ///< "PORT_ACTIVE", "PORT_DOWN", …
  bool ethernet = false;
  int mtu_bytes = 0;            ///< active path MTU
  std::uint8_t mtu = 0;         ///< the same as ibv_mtu counts: 1 = 256 … 5 = 4096
  std::uint16_t lid = 0;        ///< InfiniBand's address
  std::uint32_t max_bytes = 0;  ///< largest message
  std::vector<Gid> gids;

  std::string text() const;  ///< "rxe0:1"
};

/// What `--rdma` says: "device", "device:port" or "device:port:gid-index"; empty: choose.
struct DeviceChoice {
  std::string device;
  int port = 0;  ///< 0: the first active one
  int gid = -1;  ///< -1: choose

  /// Throws Error(refused) that says what is expected.
  static DeviceChoice parse(std::string_view text);
};

/// A port with the GID by which peers reach it; on InfiniBand the GID is that of index 0.
struct ChosenPort {
  Port port;
  Gid gid;
  int rail = 0;              ///< which of the ports to choose from it is: ports of one number are a rail of the cluster
  int network_bits = 0;      ///< of the GID, how many name the network that its interface is on; 0: not known
  std::string text() const;  ///< "rxe0 port 1, GID 1 ::ffff:10.77.0.1 (RoCE v2), MTU 4096"
};

/// A device that is there, but can't be used.
struct BadDevice {
  std::string device;
  std::string why;  ///< "device mlx5_1 can't be opened: Permission denied"
};

/// What was found of devices.
struct Ports {
  std::vector<Port> ports;     ///< of the devices that can be opened, by device name, so that all nodes number rails alike
  std::vector<BadDevice> bad;  ///< the others
};

/// All ports of all devices. Empty without RDMA devices or without the kernel's support for them. Throws nothing because of a
/// device: see Ports::bad.
Ports list_ports();

/// True if this machine has an RDMA device, of whatever state. Opens none.
bool any_device();

/// The RoCE v2 GID to use: IPv4-mapped, else global IPv6, never link-local. Nothing if the port has no such one.
std::optional<Gid> choose_gid(const std::vector<Gid>& gids);

/// The port for local rank i: the i-th active one modulo their number, among those that `choice` names. Throws Error(refused)
/// with what is there if the choice names what doesn't exist or can't be used, or if there is nothing to choose from; devices
/// that can't be opened are named with their reason.
ChosenPort choose_port(const Ports& found, const DeviceChoice& choice, int local_rank);

/// True if two GIDs are known to be on different networks.
bool networks_differ(std::span<const std::uint8_t, 16> gid, int bits, std::span<const std::uint8_t, 16> other, int other_bits);

struct CloseDevice {
  void operator()(ibv_context* context) const;
};
using Device = std::unique_ptr<ibv_context, CloseDevice>;

/// Opens a device by name. Throws Error(refused).
Device open_device(const std::string& name);

}  // namespace tsprun::verbs
