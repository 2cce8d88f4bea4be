// Completions and asynchronous events of a device: completion queues, the channel by which all of them wake a sleeping rank, and
// the device's event queue.
#pragma once

#include "transport/posix.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

/// Completion queues and events of one device. Adapters pin memory for each completion that a queue has room for, so queues are
/// made as queue pairs need them, each as long as all before it together, and there are few.
class Events {
 public:
  /// Makes a completion queue with room for `entries`, or as many of them as the device can queue at once. Queues of different
  /// `local_rank` use the device's interrupts in turn. Throws Error(refused) if the queue can't be made. `device` must outlive
  /// this object.
  Events(ibv_context* device, int entries, int local_rank);
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  /// Throws Error(refused) if the device can't queue so many completions at once.
  void require(int entries) const;
  /// Returns a queue that has room for so many completions more, which is theirs once take() says so. Throws Error(refused) as
  /// require() does, or if another queue can't be made.
  ibv_cq* queue_for(int entries);
  void take(int entries) { left_ -= entries; }
  std::size_t queues() const { return queues_.size(); }
  /// Takes completions of a queue into `into`, from its start, and returns their number; -1 if the queue can't be read, which
  /// happens only when the device is dead.
  int poll(std::size_t queue, std::span<ibv_wc> into) {
    return ibv_poll_cq(queues_[queue].get(), static_cast<int>(into.size()), into.data());
  }

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

  void make(int entries);

  ibv_context* device_;
  int vector_;  // interrupt of all queues
  int most_;    // entries of a queue
  int made_ = 0;
  int left_ = 0;  // entries of the last queue that nobody has taken
  std::unique_ptr<ibv_comp_channel, DestroyChannel> channel_;
  std::vector<std::unique_ptr<ibv_cq, DestroyQueue>> queues_;
  posix::UniqueFd epoll_;
};

}  // namespace tsprun::detail::verbs
