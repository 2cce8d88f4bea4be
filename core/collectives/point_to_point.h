// Messages between two ranks: send, recv, and both at once.
#pragma once

#include "core/collectives/exchange.h"
#include "core/tensor/dtype.h"

#include <cstddef>

namespace tsprun {

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

class Recv final : public Collective {
 public:
  /// `posted`: the ticket of a receive into `buffer` that was posted already; kNotNow: none was.
  Recv(const Call& call, Buffer buffer, int from, Ticket posted);
  bool step(Engine& engine) override;

 private:
  Buffer buffer_;
  int from_;
  Arrival arrival_;
  Landing landing_;
};

/// One message out and one in, neither of which waits for the other: ranks of a circle may all call it at once. On the wire it is
/// a send and a recv, each with a number and a signature of its own.
class SendRecv final : public Collective {
 public:
  /// `expected`: of the message that comes; `call` speaks of the one that goes.
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

/// A send_recv with oneself: a copy.
class SelfCopy final : public Collective {
 public:
  SelfCopy(const Call& call, ConstBuffer send, Buffer recv) : Collective(call), send_(send), recv_(recv) {}
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  Buffer recv_;
  std::size_t copied_ = 0;
};

}  // namespace tsprun
