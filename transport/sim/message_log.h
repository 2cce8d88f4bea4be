// Hears of the messages of a played rank, for whoever writes down what its operations did.
#pragma once

#include "transport/transport.h"

#include <cstddef>

namespace tsprun::detail::sim {

/// Told of each message when the rank sends it or asks for it, and, as often as it looks, that it is complete.
class MessageLog {
 public:
  MessageLog() = default;
  MessageLog(const MessageLog&) = delete;
  MessageLog& operator=(const MessageLog&) = delete;
  virtual ~MessageLog() = default;
  virtual void sent(LaneId to, Ticket ticket, std::size_t bytes) = 0;
  virtual void asked(LaneId from, Ticket ticket, std::size_t bytes) = 0;
  virtual void send_done(LaneId to, Ticket ticket) = 0;
  virtual void receive_done(LaneId from, Ticket ticket) = 0;
};

}  // namespace tsprun::detail::sim
