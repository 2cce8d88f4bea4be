// Opens an adapter, and keeps in mind what becomes of its port.
#include "transport/verbs/adapter.h"

#include "transport/cause.h"
#include "transport/log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tsprun::detail::verbs {

Adapter::Adapter(const ChosenPort& chosen)
    : port(chosen), device(open_device(chosen.port.device)), pd(library().alloc_pd(device.get())) {
  if (!pd) throw system_error(Cause::refused, fmt::format("verbs: no protection domain on {}", port.text()), errno);
}

void Adapter::note(const DeviceEvent& event) {
  if (event.port != port.port.number) return;
  if (event.port_changed)
    port_trouble = event.port_is_up ? std::string() : fmt::format("{} port {} is down", port.port.device, port.port.number);
  if (event.addresses_changed) ask_address();
}

void Adapter::ask_port() {
  ibv_port_attr now{};
  const auto number = static_cast<std::uint8_t>(port.port.number);
  if (!port_trouble.empty() || query_port(device.get(), number, now) != 0 || now.state == IBV_PORT_ACTIVE) return;
  port_trouble = fmt::format("{} port {} is down", port.port.device, port.port.number);
}

void Adapter::ask_address() {
  const Ports now = ports_of(device.get());
  const auto here = std::ranges::find(now.ports, port.port.number, &Port::number);
  std::string trouble;
  if (here == now.ports.end()) {
    trouble = fmt::format("{} is gone", port.port.text());
  } else {
    const auto gid = std::ranges::find(here->gids, port.gid.index, &Gid::index);
    const auto key = static_cast<std::size_t>(port.pkey_index);
    if (gid == here->gids.end())
      trouble = fmt::format("GID {} of {}, {}, is gone", port.gid.index, port.port.text(), port.gid.text());
    else if (gid->bytes != port.gid.bytes)
      trouble = fmt::format("GID {} of {} was {}, and is {}", port.gid.index, port.port.text(), port.gid.text(), gid->text());
    else if (here->lid != port.port.lid)
      trouble = fmt::format("LID of {} was {}, and is {}", port.port.text(), port.port.lid, here->lid);
    else if (!port.port.ethernet && key < here->pkeys.size() && here->pkeys[key] != port.pkey)
      trouble = fmt::format("partition {:#x} of {} is gone", port.pkey, port.port.text());
  }
  if (!trouble.empty() && trouble != address_trouble)
    logger().warn("{}: connections over it will fail, at the latest when they are made anew", trouble);
  address_trouble = std::move(trouble);
}

}  // namespace tsprun::detail::verbs
