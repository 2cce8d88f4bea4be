// Lists devices, ports and GIDs with libibverbs.
#include "transport/verbs/device.h"

#include "transport/cause.h"
#include "transport/verbs/library.h"
#include "transport/verbs/reported.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <ifaddrs.h>
#include <iterator>
#include <netinet/in.h>

namespace tsprun::detail::verbs {

namespace {

/// GIDs of a port for which there is room, whatever the port claims to have.
constexpr int kMostGids = 1 << 16;

struct FreeList {
  void operator()(ibv_device** list) const { library().free_device_list(list); }
};
using DeviceList = std::unique_ptr<ibv_device*, FreeList>;

DeviceList device_list(int& count) {
  count = 0;
  return library_trouble().empty() ? DeviceList(library().get_device_list(&count)) : nullptr;
}

GidType type_of(std::uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1: return GidType::roce_v1;
    case IBV_GID_TYPE_ROCE_V2: return GidType::roce_v2;
    default: return GidType::infiniband;
  }
}

/// A port and the rows that its GID table has.
struct GidTable {
  std::uint32_t port;
  std::uint32_t rows;
};

/// Returns the GIDs of these ports.
std::vector<ibv_gid_entry> gids_of(ibv_context* device, const std::vector<GidTable>& ports) {
  // A call of the kernel has 16 bits for the length of what it fills.
  constexpr std::size_t kMostAtOnce = 0xffff / sizeof(ibv_gid_entry);
  std::size_t room = 0;
  for (const GidTable& each : ports) room += each.rows;
  std::vector<ibv_gid_entry> table(std::min(room, kMostAtOnce));
  const ssize_t found = library().query_gid_table(device, table.data(), table.size(), 0, sizeof(ibv_gid_entry));
  table.resize(found < 0 ? 0 : std::min(static_cast<std::size_t>(found), table.size()));
  if (found >= 0) return table;
  // There are more than fit, or the provider has no such call: row by row.
  ibv_gid_entry entry{};
  for (const GidTable& each : ports) {
    for (std::uint32_t row = 0; row < each.rows; ++row) {
      if (library().query_gid_ex(device, each.port, row, &entry, 0, sizeof entry) == 0) table.push_back(entry);
    }
  }
  return table;
}

int bits_set(std::span<const std::uint8_t> mask) {
  int bits = 0;
  for (const std::uint8_t byte : mask) bits += std::popcount(byte);
  return bits;
}

/// Addresses of this network namespace's interfaces, as GIDs have them, and the lengths of their network prefixes.
struct OwnAddress {
  std::array<std::uint8_t, 16> bytes{};
  int network_bits = 0;
};
std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_netmask == nullptr) continue;
    const bool four = each->ifa_addr->sa_family == AF_INET;
    if (!four && each->ifa_addr->sa_family != AF_INET6) continue;
    const std::size_t at = four ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
    const std::size_t size = four ? sizeof(in_addr) : sizeof(in6_addr);
    const auto bytes = [&](const sockaddr* address) { return reinterpret_cast<const std::uint8_t*>(address) + at; };
    OwnAddress own;
    if (four) own.bytes[10] = own.bytes[11] = 0xff;
    std::memcpy(own.bytes.data() + own.bytes.size() - size, bytes(each->ifa_addr), size);
    own.network_bits = (four ? 96 : 0) + bits_set({bytes(each->ifa_netmask), size});
    found.push_back(own);
  }
  return found;
}

/// Returns the NUMA node of a device; -1: not known, or the machine has one.
int numa_node_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

/// Returns the partition keys of a port. `count`: as it claims.
std::vector<std::uint16_t> pkeys_of(ibv_context* device, std::uint8_t port, int count) {
  constexpr int kMostKeys = 1 << 10;  // each is a system call
  std::vector<std::uint16_t> keys;
  __be16 key = 0;
  for (int index = 0; index < std::min(count, kMostKeys) && library().query_pkey(device, port, index, &key) == 0; ++index)
    keys.push_back(ntohs(key));
  return keys;
}

/// Adds the device's ports to the list or, if it can't be used, the device with the reason.
void list_ports_of(ibv_device* device, Ports& into) {
  const std::string name = library().get_device_name(device);
  if (std::string why = device_defect(name, device->transport_type); !why.empty()) {
    into.bad.push_back({name, std::move(why)});
    return;
  }
  const Device context(library().open_device(device));
  if (!context) {
    into.bad.push_back({name, fmt::format("device {} can't be opened: {}", name, std::strerror(errno))});
    return;
  }
  Ports found = ports_of(context.get());
  std::ranges::move(found.ports, std::back_inserter(into.ports));
  std::ranges::move(found.bad, std::back_inserter(into.bad));
}

}  // namespace

std::string_view name(GidType type) {
  switch (type) {
    case GidType::infiniband: return "InfiniBand";
    case GidType::roce_v1: return "RoCE v1";
    case GidType::roce_v2: return "RoCE v2";
  }
  return "?";
}

bool Gid::is_ipv4_mapped() const {
  return std::all_of(bytes.begin(), bytes.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) && bytes[10] == 0xff &&
         bytes[11] == 0xff;
}

std::string Gid::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  return ::inet_ntop(AF_INET6, bytes.data(), buffer, sizeof buffer) != nullptr ? buffer : "?";
}

std::string Port::text() const { return fmt::format("{}:{}", device, number); }

std::string ChosenPort::text() const {
  return fmt::format("{} port {}, GID {} {} ({}), MTU {}", port.device, port.number, gid.index, gid.text(), name(gid.type),
                     port.mtu_bytes);
}

Ports ports_of(ibv_context* context) {
  const std::string name = library().get_device_name(context->device);
  Ports all;
  ibv_device_attr attributes{};
  if (const int error = library().query_device(context, &attributes); error != 0) {
    all.bad.push_back({name, fmt::format("device {} can't be queried: {}", name, std::strerror(error))});
    return all;
  }
  std::vector<GidTable> tables;
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {  // of 8 bits: up to 255
    ibv_port_attr found{};
    if (query_port(context, static_cast<std::uint8_t>(number), found) != 0) continue;
    // Those of ports that are down are looked at where all fit.
    if (const int rows = std::clamp(found.gid_tbl_len, 0, kMostGids); found.state == IBV_PORT_ACTIVE || tables.empty())
      tables.push_back({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(rows)});
    Port port;
    port.device = name;
    port.number = number;
    port.active = found.state == IBV_PORT_ACTIVE;
    port.state = library().port_state_str(found.state);
    port.ethernet = found.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.mtu = static_cast<std::uint8_t>(found.active_mtu);
    port.mtu_bytes = mtu_bytes_of(found);
    port.defect = port_defect(found);
    port.lid = found.lid;
    port.max_bytes = found.max_msg_sz;
    port.grh_required = (found.flags & IBV_QPF_GRH_REQUIRED) != 0;
    port.gbps = gbps_of(found);
    port.pkeys = pkeys_of(context, static_cast<std::uint8_t>(number), found.pkey_tbl_len);
    port.firmware.assign(attributes.fw_ver, ::strnlen(attributes.fw_ver, sizeof attributes.fw_ver));
    port.numa_node = numa_node_of(name);
    port.max_queue_pairs = attributes.max_qp;
    port.max_completions = attributes.max_cqe;
    all.ports.push_back(std::move(port));
  }
  const std::vector<OwnAddress> own = own_addresses();
  for (const ibv_gid_entry& entry : gids_of(context, tables)) {
    Gid gid;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.index = static_cast<int>(entry.gid_index);
    gid.type = type_of(entry.gid_type);
    gid.foreign = gid.type != GidType::infiniband && !gid.is_link_local() && !own.empty() &&
                  std::ranges::find(own, gid.bytes, &OwnAddress::bytes) == own.end();
    for (Port& port : all.ports) {
      if (entry.port_num == static_cast<std::uint32_t>(port.number)) port.gids.push_back(gid);
    }
  }
  return all;
}

Ports list_ports() {
  int count = 0;
  const DeviceList list = device_list(count);
  Ports found;
  if (!list) return found;
  std::vector<ibv_device*> devices(list.get(), list.get() + count);
  std::sort(devices.begin(), devices.end(), [](ibv_device* a, ibv_device* b) {
    return natural_order(library().get_device_name(a), library().get_device_name(b));
  });
  for (ibv_device* device : devices) list_ports_of(device, found);
  return found;
}

bool any_device() {
  int count = 0;
  const DeviceList list = device_list(count);
  return list != nullptr && count > 0;
}

std::string no_device() {
  const std::string trouble = library_trouble();
  return trouble.empty() ? "there is no RDMA device on this machine" : trouble;
}

bool natural_order(std::string_view name, std::string_view other) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < name.size() && j < other.size()) {
    if (!is_digit(name[i]) || !is_digit(other[j])) {
      if (name[i] != other[j]) return name[i] < other[j];
      ++i;
      ++j;
      continue;
    }
    const auto digits = [&](std::string_view text, std::size_t& at) {
      while (at + 1 < text.size() && text[at] == '0' && is_digit(text[at + 1])) ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view number = digits(name, i);
    const std::string_view other_number = digits(other, j);
    if (number.size() != other_number.size()) return number.size() < other_number.size();
    if (number != other_number) return number < other_number;
  }
  if (i == name.size() && j == other.size()) return name < other;  // "a01" and "a1"
  return i == name.size();
}

int network_bits_of(const Gid& gid) {
  const std::vector<OwnAddress> own = own_addresses();
  const auto place = std::ranges::find(own, gid.bytes, &OwnAddress::bytes);
  return place == own.end() ? 0 : place->network_bits;
}

void CloseDevice::operator()(ibv_context* context) const { library().close_device(context); }

Device open_device(const std::string& name) {
  int count = 0;
  const DeviceList list = device_list(count);
  for (int i = 0; list && i < count; ++i) {
    ibv_device* device = list.get()[i];
    if (name != library().get_device_name(device)) continue;
    Device context(library().open_device(device));
    if (!context) throw system_error(Cause::refused, fmt::format("verbs: device {} can't be opened", name), errno);
    return context;
  }
  throw Error(Cause::refused, fmt::format("verbs: device {} is gone", name));
}

}  // namespace tsprun::detail::verbs
