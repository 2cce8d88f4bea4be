// The state machines of send, recv, send_recv and a rank's copy to itself.
#include "core/collectives/point_to_point.h"

namespace tsprun::detail {

Send::Send(const Call& call, ConstBuffer buffer, int to) : Collective(call), buffer_(buffer), to_(to) {
  offer_.set(*this, buffer_.as_bytes(), buffer_.bytes(), Readers::one);
}

bool Send::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (!offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  if (!sent_) {
    if (!offer_.send(*this, to_, 0, 0, buffer_.bytes())) return false;
    offer_.all_sent();
    sent_ = true;
  }
  return offer_.drained(*this, engine);
}

Recv::Recv(const Call& call, Buffer buffer, int from, Ticket posted) : Collective(call), buffer_(buffer), from_(from) {
  if (posted != kNotNow) arrival_.adopt(posted, from, buffer_.as_bytes());
  set_missing(from);
}

bool Recv::step(Engine& engine) {
  if (!arrival_.posted() && !arrival_.post(*this, from_, 0, buffer_.as_bytes(), buffer_.as_bytes(), landing_)) return false;
  std::size_t budget = kSegmentBytes;
  if (arrival_.advance(*this, engine, budget) && !arrival_.done()) engine.moved();
  return arrival_.done();
}

SendRecv::SendRecv(const Call& call, const OperationInfo& expected, ConstBuffer send, int to, Buffer recv, int from)
    : Collective(call, expected), expected_(expected), send_(send), to_(to), recv_(recv), from_(from) {
  offer_.set(*this, send_.as_bytes(), send_.bytes(), Readers::one);
}

bool SendRecv::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (!sent_ && offer_.prepare_all(*this, engine, prepared_, budget) && offer_.send(*this, to_, 0, 0, send_.bytes())) {
    offer_.all_sent();
    sent_ = true;
  }
  // Receive even if this rank's message couldn't be sent yet: the peer may be unable to take it before its own message is read.
  if (arrival_.posted() || arrival_.post(*this, from_, 0, recv_.as_bytes(), recv_.as_bytes(), landing_)) {
    if (arrival_.advance(*this, engine, budget)) engine.moved();
  }
  const bool gone = sent_ && offer_.drained(*this, engine);
  if (!arrival_.done()) set_missing(from_);
  return gone && arrival_.done();
}

bool SelfCopy::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (copy_some(recv_.data, send_.data, send_.bytes(), copied_, budget)) return true;
  engine.moved();
  return false;
}

}  // namespace tsprun::detail
