// What a device tells: completions, through one completion queue and the channel that wakes a sleeper, and asynchronous events.
#pragma once

#include "transport/posix.h"
#include "transport/verbs/device.h"

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tsprun::verbs {

/// "IBV_WC_RETRY_EXC_ERR (transport retry counter exceeded), vendor error 0x81, queue pair 17": all that a failed completion
/// tells.
std::string describe(const ibv_wc& failed);

/// An asynchronous event, already acknowledged.
struct DeviceEvent {
  enum class Reach : std::uint8_t { nothing, queue_pair, device };
  Reach breaks = Reach::nothing;
  std::uint32_t queue_pair = 0;
  int port = 0;  ///< of IBV_EVENT_PORT_…; else 0
  bool port_is_up = false;
  std::string text;
};

class Events {
 public:
  /// Throws Error(refused) if `entries` are more than the device can queue.
  Events(ibv_context* device, int entries);
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  ibv_cq* queue() const { return queue_.get(); }
  /// Fills `into` from its start; how many, or -1 with errno-like trouble, which only a dead device gives.
  int poll(std::span<ibv_wc> into) { return ibv_poll_cq(queue_.get(), static_cast<int>(into.size()), into.data()); }

  /// The descriptor becomes readable with the next completion or event.
  void arm();
  /// Takes the channel's notifications away, so that it's quiet again.
  void disarm();
  int descriptor() const { return epoll_.get(); }

  /// The next asynchronous event, if there is one.
  bool next(DeviceEvent& event);

 private:
  struct DestroyChannel {
    void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
  };
  struct DestroyQueue {
    void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  };

  ibv_context* device_;
  std::unique_ptr<ibv_comp_channel, DestroyChannel> channel_;
  std::unique_ptr<ibv_cq, DestroyQueue> queue_;
  posix::UniqueFd epoll_;
};

}  // namespace tsprun::verbs
