// send and recv: one message.
#include "core/collectives/operations.h"

namespace tsp {

Send::Send(const Call& call, ConstBuffer buffer, int to) : Collective(call), buffer_(buffer), to_(to) {
  offer_.set(group(), buffer_.as_bytes(), buffer_.bytes(), Readers::one);
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

Recv::Recv(const Call& call, Buffer buffer, int from) : Collective(call), buffer_(buffer), from_(from) { set_missing(from); }

bool Recv::step(Engine& engine) {
  if (!arrival_.posted() && !arrival_.post(*this, from_, 0, buffer_.as_bytes(), buffer_.as_bytes(), landing_)) return false;
  std::size_t budget = kSegmentBytes;
  if (arrival_.advance(*this, engine, budget) && !arrival_.done()) engine.moved();
  return arrival_.done();
}

}  // namespace tsp
