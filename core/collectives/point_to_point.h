// Operations for messages between two ranks: send, recv and send_recv.
#pragma once

#include "core/collectives/exchange.h"
#include "tsprun/types.h"

#include <cstddef>

namespace tsprun::detail {

/// Sends a message to another member; complete when the buffer may be reused.
class Send final : public Collective {
 public:
  Send(const Call& call, ConstBuffer buffer, int to);
  bool step(Engine& engine) override;

 private:
  ConstBuffer buffer_;
  int to_;
  Offer offer_;
  std::size_t prepared_ = 0;
  bool sent_ = false;
};

/// Receives a message from another member into a buffer.
class Recv final : public Collective {
 public:
  /// `posted`: ticket of a receive into `buffer` that was posted earlier, or kNotNow.
  Recv(const Call& call, Buffer buffer, int from, Ticket posted);
  bool step(Engine& engine) override;

 private:
  Buffer buffer_;
  int from_;
  Arrival arrival_;
  Landing landing_;
};

/// Sends a message and receives one; neither waits for the other, so all ranks of a ring may call it at once. On the wire it is a
/// send and a recv, each with its own number and signature.
class SendRecv final : public Collective {
 public:
  /// `call` describes the message that is sent, `expected` the one that is received.
  SendRecv(const Call& call, const OperationInfo& expected, ConstBuffer send, int to, Buffer recv, int from);
  bool step(Engine& engine) override;

 private:
  const OperationInfo& expected_info() const override { return expected_; }

  OperationInfo expected_;
  ConstBuffer send_;
  int to_;
  Buffer recv_;
  int from_;
  Offer offer_;
  std::size_t prepared_ = 0;
  bool sent_ = false;
  Arrival arrival_;
  Landing landing_;
};

/// Copies locally: a send_recv of a rank with itself.
class SelfCopy final : public Collective {
 public:
  SelfCopy(const Call& call, ConstBuffer send, Buffer recv) : Collective(call), send_(send), recv_(recv) {}
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  Buffer recv_;
  std::size_t copied_ = 0;
};

}  // namespace tsprun::detail
