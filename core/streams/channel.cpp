// Sends and receives of a channel, each a letter or a request of the mail.
#include "core/streams/channel.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

Mail::Seal seal_of(const Envelope& envelope) {
  return {.signature = envelope.signature, .sequence = envelope.sequence, .tag = envelope.tag};
}

}  // namespace

/// The way to one member and back. It has no progress of its own: the engine makes that of the real transport.
class OwnChannel::Way final : public Transport {
 public:
  Way(OwnChannel& channel, int world)
      : channel_(&channel),
        world_(world),
        real_(channel.engine_->route(world).transport),
        lane_{channel.engine_->route(world).peer, kTagged} {}

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  std::size_t plain_limit() const override { return real_->plain_limit(); }
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  bool can_send_from(std::span<const std::byte> memory) const override { return real_->can_send_from(memory); }
  bool can_receive_into(std::span<const std::byte> memory) const override { return real_->can_receive_into(memory); }
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  Found found(LaneId) const override { return found_; }

  void advance();
  bool unsent() const { return !sends_.empty(); }

 private:
  enum class Phase : std::uint8_t { letter, payload, posted };
  struct Sending {
    Sending(Way& way, const Envelope& sealed, std::span<const std::byte> bytes, Delivery how)
        : letter(*way.channel_->mail_, way.world_, way.channel_->group_, kNoTag, DType::byte, bytes, sealed.purpose,
                 seal_of(sealed)),
          envelope(sealed),
          payload(bytes),
          delivery(how) {}
    Ticket ticket = kNotNow;
    Mail::Letter letter;
    Envelope envelope;
    std::span<const std::byte> payload;
    Delivery delivery;
    std::vector<std::byte> copy;  // of a payload that the caller may change
    Phase phase = Phase::letter;
    Ticket posted = kNotNow;  // of the payload on the real lane
  };
  struct Receiving {
    Receiving(Way& way, const Envelope& sealed, std::span<std::byte> place)
        : request(*way.channel_->mail_, {&way.world_, 1}, way.channel_->group_, kNoTag, DType::byte, place, sealed.purpose,
                  seal_of(sealed)),
          envelope(sealed),
          into(place) {}
    Ticket ticket = kNotNow;
    Mail::Request request;
    Envelope envelope;
    std::span<std::byte> into;
    Ticket posted = kNotNow;  // of the payload on the real lane
  };
  bool advance(Sending& sending);
  bool advance(Receiving& receiving);

  OwnChannel* channel_;
  int world_;
  Transport* real_;
  LaneId lane_;
  Ticket sent_ = 0;
  Ticket asked_ = 0;
  std::list<Sending> sends_;       // that haven't left
  std::list<Receiving> receives_;  // that haven't come
  Found found_;
};

// --- sending -----------------------------------------------------------------------------------------------------------------

Ticket OwnChannel::Way::send(LaneId, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) {
  Sending& sending = sends_.emplace_back(*this, envelope, payload, delivery);
  sending.ticket = ++sent_;
  if (advance(sending)) {
    sends_.pop_back();
  } else if (delivery == Delivery::copy_if_small) {
    sending.copy.assign(payload.begin(), payload.end());
    sending.payload = sending.copy;
    sending.letter.payload_is_at(sending.payload);
  }
  return sent_;
}

/// Goes as far as it can; returns true once the payload may change.
bool OwnChannel::Way::advance(Sending& sending) {
  const OperationInfo& mine = channel_->mine_;
  Engine& engine = *channel_->engine_;
  if (sending.phase == Phase::letter) {
    if (!sending.letter.sent_or_wanted(mine)) return false;
    if (sending.letter.sent()) return true;
    sending.phase = Phase::payload;
  }
  if (sending.phase == Phase::payload) {
    if (!sending.letter.has_lane(mine)) return false;
    sending.posted = real_->send(lane_, sending.envelope, sending.payload, sending.delivery);
    if (sending.posted == kNotNow) return false;
    sending.phase = Phase::posted;
    sending.letter.give_back_lane();
    engine.moved();
  }
  switch (real_->test_send(lane_, sending.posted)) {
    case Outcome::done: return true;
    case Outcome::pending: return false;
    case Outcome::disconnected:
      engine.lost(world_, mine.op, fmt::format("{}: the way to rank {} was cut before it had read", name(mine.op), world_));
    default:
      engine.fail(Cause::corrupt, world_,
                  fmt::format("{}: rank {} acknowledges messages that were never sent to it", name(mine.op), world_));
  }
}

Outcome OwnChannel::Way::test_send(LaneId, Ticket ticket) {
  const auto at = std::ranges::find(sends_, ticket, &Sending::ticket);
  if (at == sends_.end()) return Outcome::done;
  if (!advance(*at)) return Outcome::pending;
  sends_.erase(at);
  return Outcome::done;
}

// --- receiving ---------------------------------------------------------------------------------------------------------------

Ticket OwnChannel::Way::receive(LaneId, const Envelope& envelope, std::span<std::byte> into) {
  Receiving& receiving = receives_.emplace_back(*this, envelope, into);
  receiving.ticket = ++asked_;
  if (advance(receiving)) receives_.pop_back();
  return asked_;
}

/// Goes as far as it can; returns true once the message is in its buffer.
bool OwnChannel::Way::advance(Receiving& receiving) {
  const OperationInfo& mine = channel_->mine_;
  if (receiving.posted == kNotNow) {
    if (!receiving.request.here_or_coming(mine)) return false;
    if (!receiving.request.coming()) return true;
    receiving.posted = channel_->engine_->receive_on_channel(*real_, lane_, receiving.envelope, receiving.into);
    if (receiving.posted == kNotNow) return false;
  }
  const Outcome outcome = real_->test_receive(lane_, receiving.posted);
  if (outcome == Outcome::pending) return false;
  if (outcome != Outcome::done) channel_->engine_->fail_receive(outcome, world_, lane_, *real_, mine);
  receiving.request.received();
  channel_->engine_->moved();
  return true;
}

Outcome OwnChannel::Way::test_receive(LaneId, Ticket ticket) {
  const auto at = std::ranges::find(receives_, ticket, &Receiving::ticket);
  if (at == receives_.end()) return Outcome::done;
  if (advance(*at)) {
    receives_.erase(at);
    return Outcome::done;
  }
  if (!at->request.is_another()) return Outcome::pending;
  const Mail::Seal& seal = at->request.seal();
  found_ = {.envelope = {.signature = seal.signature, .sequence = seal.sequence, .tag = seal.tag},
            .bytes = at->request.header().bytes,
            .detail = {}};
  return Outcome::mismatch;
}

void OwnChannel::Way::advance() {
  sends_.remove_if([this](Sending& each) { return advance(each); });
  receives_.remove_if([this](Receiving& each) { return advance(each); });
}

// --- the channel -------------------------------------------------------------------------------------------------------------

OwnChannel::OwnChannel(Engine& engine, std::span<const int> members, std::uint64_t group)
    : engine_(&engine), mail_(engine.mail()), group_(group) {
  for (const int world : members) {
    if (world != engine.world_rank()) ways_.emplace(world, std::make_unique<Way>(*this, world));
  }
}

OwnChannel::~OwnChannel() = default;

Transport& OwnChannel::way(int world) { return *ways_.at(world); }

void OwnChannel::advance(const OperationInfo& mine) {
  mine_ = mine;
  for (const auto& [world, way] : ways_) way->advance();
}

int OwnChannel::unsent() const {
  const auto at = std::ranges::find_if(ways_, [](const auto& each) { return each.second->unsent(); });
  return at == ways_.end() ? -1 : at->first;
}

}  // namespace tsprun::detail
