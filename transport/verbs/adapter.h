// An adapter that a rank uses: a port of a device that it has opened, the memory that is registered there, and its events.
#pragma once

#include "transport/verbs/device.h"
#include "transport/verbs/events.h"
#include "transport/verbs/memory.h"

#include <memory>
#include <optional>
#include <string>

namespace tsprun::detail::verbs {

struct Adapter {
  /// Opens the port's device. Throws Error(refused).
  explicit Adapter(const ChosenPort& chosen);

  ChosenPort port;
  Device device;
  struct DeallocatePd {
    void operator()(ibv_pd* domain) const { library().dealloc_pd(domain); }
  };
  std::unique_ptr<ibv_pd, DeallocatePd> pd;
  std::optional<Slabs> slabs;
  std::optional<Events> events;
  std::string port_trouble;     ///< set while the port is down
  bool has_told_loss = false;   ///< the log says that ways by it are lost because its port is down
  bool has_lost = false;        ///< the log says that a way by it is lost, without knowing that its port is down
  bool has_told = false;        ///< the log says of a peer why payloads don't go there by this adapter
  std::string address_trouble;  ///< set once the port's addresses aren't those that peers were told

  /// Notes what an event says of the port.
  void note(const DeviceEvent& event);
  /// Asks for the port's state: the event of a port that went down may come after the requests that failed because of it.
  void ask_port();

 private:
  /// Compares the port's addresses with those that peers were told: a connection outlives their loss at best for a while, and
  /// what fails then shall name it.
  void ask_address();
};

}  // namespace tsprun::detail::verbs
