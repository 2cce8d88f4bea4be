// Completions and asynchronous events of a device: one completion queue, the channel that wakes a sleeping rank, and the
// device's event queue.
#pragma once

#include "transport/posix.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tsprun::detail::verbs {

/// Describes a failed completion with all that it tells: "IBV_WC_RETRY_EXC_ERR (transport retry counter exceeded), vendor error
/// 0x81, queue pair 17".
std::string describe(const ibv_wc& failed);

/// An asynchronous event (ibv_get_async_event(3)), already acknowledged.
struct DeviceEvent {
  /// Extent of the damage: nothing, one queue pair, or the device.
  enum class Extent : std::uint8_t { nothing, queue_pair, device };
  Extent breaks = Extent::nothing;
  std::uint32_t queue_pair = 0;
  int port = 0;               ///< port to which it happened; 0: to none
  bool port_changed = false;  ///< it is up or down now
  bool port_is_up = false;
  bool addresses_changed = false;  ///< its GIDs, LID or partitions may be others
  std::string text;
};

/// Completion queue and events of one device.
class Events {
 public:
  /// Makes a completion queue with room for `entries`. Queues of different `local_rank` use the device's interrupts in turn.
  /// Throws Error(refused) if the device can't queue so many, or the queue can't be made. `device` must outlive this object.
  Events(ibv_context* device, int entries, int local_rank);
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  ibv_cq* queue() const { return queue_.get(); }
  /// Takes completions into `into`, from its start, and returns their number; -1 if the queue can't be read, which happens only
  /// when the device is dead.
  int poll(std::span<ibv_wc> into) { return ibv_poll_cq(queue_.get(), static_cast<int>(into.size()), into.data()); }

  /// Asks for the descriptor to become readable with the next completion or event.
  void arm();
  /// Takes and acknowledges the channel's notifications, so that the descriptor isn't readable any more.
  void disarm();
  int descriptor() const { return epoll_.get(); }

  /// Takes the next asynchronous event. Returns false if there is none.
  bool next(DeviceEvent& event);

 private:
  struct DestroyChannel {
    void operator()(ibv_comp_channel* channel) const { library().destroy_comp_channel(channel); }
  };
  struct DestroyQueue {
    void operator()(ibv_cq* queue) const { library().destroy_cq(queue); }
  };

  ibv_context* device_;
  std::unique_ptr<ibv_comp_channel, DestroyChannel> channel_;
  std::unique_ptr<ibv_cq, DestroyQueue> queue_;
  posix::UniqueFd epoll_;
};

}  // namespace tsprun::detail::verbs
