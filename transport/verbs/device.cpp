// Lists devices, ports and GIDs with libibverbs, and compares networks of RoCE addresses.
#include "transport/verbs/device.h"

#include "transport/cause.h"
#include "transport/number.h"
#include "transport/verbs/library.h"
#include "transport/verbs/reported.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <arpa/inet.h>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ifaddrs.h>
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

/// Returns the GID tables of all ports, which have room for so many GIDs together.
std::vector<ibv_gid_entry> gids_of(ibv_context* device, std::size_t room) {
  std::vector<ibv_gid_entry> table(room);
  const ssize_t found = library().query_gid_table(device, table.data(), table.size(), 0, sizeof(ibv_gid_entry));
  table.resize(found < 0 ? 0 : std::min(static_cast<std::size_t>(found), room));
  return table;
}

/// Adds the device's ports to the list or, if it can't be used, the device with the reason.
void list_ports_of(ibv_device* device, Ports& into) {
  const std::string name = library().get_device_name(device);
  const auto leave_out = [&](const char* what, int error) {
    into.bad.push_back({name, fmt::format("device {} can't be {}: {}", name, what, std::strerror(error))});
  };
  if (std::string why = device_defect(name, device->transport_type); !why.empty()) {
    into.bad.push_back({name, std::move(why)});
    return;
  }
  const Device context(library().open_device(device));
  if (!context) return leave_out("opened", errno);
  ibv_device_attr attributes{};
  if (const int error = library().query_device(context.get(), &attributes); error != 0) return leave_out("queried", error);

  const std::size_t first = into.ports.size();
  std::size_t room = 0;
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {  // of 8 bits: up to 255
    ibv_port_attr found{};
    if (query_port(context.get(), static_cast<std::uint8_t>(number), found) != 0) continue;
    room += static_cast<std::size_t>(std::clamp(found.gid_tbl_len, 0, kMostGids));
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
    into.ports.push_back(std::move(port));
  }
  for (const ibv_gid_entry& entry : gids_of(context.get(), room)) {
    Gid gid;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.index = static_cast<int>(entry.gid_index);
    gid.type = type_of(entry.gid_type);
    for (Port& port : std::span(into.ports).subspan(first)) {
      if (entry.port_num == static_cast<std::uint32_t>(port.number)) port.gids.push_back(gid);
    }
  }
}

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

int number_in(std::string_view text, std::string_view whole) {
  const std::optional<int> value = number_from<int>(text);
  if (!value || *value < 0) {
    throw Error(Cause::refused, fmt::format("--rdma {}: 'device', 'device:port' or 'device:port:gid-index' is expected", whole));
  }
  return *value;
}

int bits_set(std::span<const std::uint8_t> mask) {
  int bits = 0;
  for (const std::uint8_t byte : mask) bits += std::popcount(byte);
  return bits;
}

/// Returns the length of the network prefix of a RoCE GID, which is an IP address of an interface of this machine. 0: no
/// interface has that address.
int network_bits_of(const Gid& gid) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return 0;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_netmask == nullptr) continue;
    const bool four = each->ifa_addr->sa_family == AF_INET && gid.is_ipv4_mapped();
    if (!four && each->ifa_addr->sa_family != AF_INET6) continue;
    const std::size_t at = four ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
    const std::size_t size = four ? sizeof(in_addr) : sizeof(in6_addr);
    const auto bytes = [&](const sockaddr* address) { return reinterpret_cast<const std::uint8_t*>(address) + at; };
    if (std::memcmp(bytes(each->ifa_addr), gid.bytes.data() + gid.bytes.size() - size, size) != 0) continue;
    return (four ? 96 : 0) + bits_set({bytes(each->ifa_netmask), size});
  }
  return 0;
}

/// Returns the GID to use on a port, if it has a usable one.
std::optional<Gid> usable_gid(const Port& port) {
  if (port.ethernet) return choose_gid(port.gids);
  return port.gids.empty() ? std::optional<Gid>() : port.gids.front();
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

DeviceChoice DeviceChoice::parse(std::string_view text) {
  DeviceChoice choice;
  const std::size_t first = text.find(':');
  choice.device = text.substr(0, first);
  if (first == std::string_view::npos) return choice;
  const std::string_view rest = text.substr(first + 1);
  const std::size_t second = rest.find(':');
  choice.port = number_in(rest.substr(0, second), text);
  if (choice.device.empty() || choice.port == 0) number_in("", text);
  if (second != std::string_view::npos) choice.gid = number_in(rest.substr(second + 1), text);
  return choice;
}

Ports list_ports() {
  int count = 0;
  const DeviceList list = device_list(count);
  Ports found;
  if (!list) return found;
  std::vector<ibv_device*> devices(list.get(), list.get() + count);
  std::sort(devices.begin(), devices.end(), [](ibv_device* a, ibv_device* b) {
    return std::strcmp(library().get_device_name(a), library().get_device_name(b)) < 0;
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

std::optional<Gid> choose_gid(const std::vector<Gid>& gids) {
  const Gid* global = nullptr;
  for (const Gid& gid : gids) {
    if (gid.type != GidType::roce_v2 || gid.is_link_local()) continue;
    if (gid.is_ipv4_mapped()) return gid;
    if (global == nullptr) global = &gid;
  }
  return global != nullptr ? std::optional<Gid>(*global) : std::nullopt;
}

ChosenPort choose_port(const Ports& found, const DeviceChoice& choice, int local_rank) {
  const auto refuse = [&](const std::string& what) {
    const std::string wanted = choice.device.empty() ? "verbs" : fmt::format("--rdma {}", choice.device);
    return Error(Cause::refused, fmt::format("{}: {}; {}", wanted, what, describe(found)));
  };
  const auto broken =
      std::find_if(found.bad.begin(), found.bad.end(), [&](const BadDevice& each) { return each.device == choice.device; });
  if (broken != found.bad.end()) throw Error(Cause::refused, fmt::format("--rdma {}: {}", choice.device, broken->why));
  std::vector<const Port*> named;
  for (const Port& port : found.ports) {
    if (!choice.device.empty() && port.device != choice.device) continue;
    if (choice.port != 0 && port.number != choice.port) continue;
    named.push_back(&port);
  }
  if (named.empty()) {
    if (choice.device.empty()) throw Error(Cause::refused, describe(found));
    if (const std::string trouble = library_trouble(); !trouble.empty())
      throw Error(Cause::refused, fmt::format("--rdma {}: {}", choice.device, trouble));
    throw refuse(choice.port != 0 ? fmt::format("no port {} of such a device", choice.port) : "no such device");
  }
  std::vector<ChosenPort> usable;
  for (const Port* port : named) {
    if (!port->active || !port->defect.empty()) continue;
    if (choice.gid >= 0) {
      for (const Gid& gid : port->gids) {
        if (gid.index == choice.gid) usable.push_back({.port = *port, .gid = gid});
      }
    } else if (const std::optional<Gid> gid = usable_gid(*port)) {
      usable.push_back({.port = *port, .gid = *gid});
    }
  }
  if (usable.empty()) {
    const bool any_active = std::any_of(named.begin(), named.end(), [](const Port* port) { return port->active; });
    if (!any_active) throw refuse("no active port");
    const auto defective = std::find_if(named.begin(), named.end(), [](const Port* port) { return !port->defect.empty(); });
    if (defective != named.end()) throw refuse(fmt::format("{} can't be used: {}", (*defective)->text(), (*defective)->defect));
    if (choice.gid >= 0) throw refuse(fmt::format("no GID of index {}", choice.gid));
    throw refuse("no RoCE v2 GID but link-local ones: give the interface an IP address");
  }
  const std::size_t rail = static_cast<std::size_t>(local_rank) % usable.size();
  ChosenPort chosen = usable[rail];
  chosen.rail = static_cast<int>(rail);
  chosen.network_bits = network_bits_of(chosen.gid);
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
