// Sends headers and small payloads of messages with a tag, and matches those that arrive with receives.
#include "core/streams/mail.h"

#include "core/streams/tag.h"
#include "transport/cause.h"
#include "tsprun/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tsprun::detail {

namespace {

/// Signature of what travels here besides announced payloads: "mail" in ASCII.
constexpr std::uint64_t kSignature = 0x6d61696c;

template <class T>
void remove(std::vector<T*>& all, const T* one) {
  if (const auto at = std::ranges::find(all, one); at != all.end()) all.erase(at);
}

}  // namespace

Envelope Mail::envelope_of(std::uint32_t header, Part part, Purpose purpose) {
  return {.signature = kSignature,
          .sequence = header,
          .tag = make_tag(Op::send, DType::byte, Reduction::sum, static_cast<std::uint32_t>(part) + 1),
          .purpose = purpose};
}

Mail::Peer& Mail::peer(int world) {
  const auto [at, is_new] = peers_.try_emplace(world);
  Peer& peer = at->second;
  if (is_new) {
    const Route& route = engine_->route(world);
    peer.world = world;
    peer.transport = route.transport;
    peer.lane = {route.peer, kTagged};
  }
  return peer;
}

void Mail::damaged(const Peer& from, const char* what) const {
  throw Error(Cause::corrupt, fmt::format("rank {} sent a header of a message with a tag that can't be: {}", from.world, what),
              from.world);
}

// --- sending -----------------------------------------------------------------------------------------------------------------

Mail::Letter::Letter(Mail& mail, int to, std::uint64_t group, std::int32_t tag, DType dtype, std::span<const std::byte> payload,
                     Purpose purpose, const Seal& seal)
    : mail_(&mail),
      to_(&mail.peer(to)),
      group_(group),
      tag_(tag),
      dtype_(dtype),
      payload_(payload),
      purpose_(purpose),
      seal_(seal) {
  number_ = ++to_->letters;
  announce(Kind::undecided);
}

/// Queues a header of this message.
void Mail::Letter::announce(Kind kind) {
  to_->outbox.push_back({.header = {.kind = kind,
                                    .dtype = dtype_,
                                    .taken = 0,
                                    .tag = tag_,
                                    .bytes = payload_.size(),
                                    .group = static_cast<std::uint32_t>(group_),
                                    .number = number_},
                         .letter = this});
}

Mail::Letter::~Letter() {
  if (state_ == State::sent) return;
  std::erase_if(to_->outbox, [this](const Outgoing& each) { return each.letter == this; });
  remove(to_->announced, this);
  if (to_->writer == this) to_->writer = nullptr;
}

bool Mail::Letter::sent_or_wanted(const OperationInfo& mine) {
  const bool cut = !mail_->attend(*to_, mine);
  const bool over = state_ == State::wanted || state_ == State::sent;
  if (cut && !over) mail_->cut_off(*to_, mine);
  return over;
}

bool Mail::Letter::has_lane(const OperationInfo& mine) {
  if (state_ == State::wanted) {
    state_ = State::due;
    announce(Kind::coming);
  }
  if (!mail_->attend(*to_, mine)) mail_->cut_off(*to_, mine);
  return state_ == State::on_lane;
}

void Mail::Letter::give_back_lane() {
  state_ = State::sent;
  to_->writer = nullptr;
  mail_->flush(*to_);
}

/// Sends what the outbox holds, as far as the lane has credit.
void Mail::flush(Peer& to) {
  while (!to.outbox.empty() && to.writer == nullptr && send_first(to)) {
    to.outbox.pop_front();
    to.parts_sent = 0;
  }
}

/// Sends the outbox's first header, and the seal and a small message's payload that belong to it; returns false if the lane has
/// no credit for all of it.
bool Mail::send_first(Peer& to) {
  Outgoing& first = to.outbox.front();
  Header& header = first.header;
  Letter* letter = first.letter;
  if (header.kind == Kind::undecided) {
    // A message of a channel that a fault may strike comes when it is asked for, by the operation whose faults are due.
    const bool is_awaited = header.tag == kNoTag && header.bytes != 0 && engine_->may_be_struck(to.world);
    const bool fits = !is_awaited && header.bytes <= std::min(kSmallMail, to.transport->plain_limit());
    header.kind = fits && to.window_is_open() ? Kind::small : Kind::announced;
    if (header.kind == Kind::small) ++to.small_sent;
  }
  if (to.parts_sent == 0) {
    if (!std::exchange(first.stamped, true)) header.taken = to.taken;
    const Ticket ticket = to.transport->send(to.lane, envelope_of(to.headers_out + 1, Part::header, Purpose::none),
                                             std::as_bytes(std::span(&header, 1)));
    if (ticket == kNotNow) return false;
    to.parts_sent = 1;
    to.taken_told = header.taken;
    ++to.headers_out;
    engine_->moved();
  }
  if (header.tag == kNoTag && (header.kind == Kind::small || header.kind == Kind::announced) && to.parts_sent == 1) {
    const Ticket ticket = to.transport->send(to.lane, envelope_of(to.headers_out, Part::seal, Purpose::none),
                                             std::as_bytes(std::span(&letter->seal_, 1)));
    if (ticket == kNotNow) return false;
    to.parts_sent = 2;
  }
  switch (header.kind) {
    case Kind::small:
      if (header.bytes > 0 && to.transport->send(to.lane, envelope_of(to.headers_out, Part::payload, letter->purpose_),
                                                 letter->payload_) == kNotNow) {
        return false;
      }
      letter->state_ = Letter::State::sent;
      break;
    case Kind::announced:
      letter->state_ = Letter::State::announced;
      to.announced.push_back(letter);
      break;
    case Kind::coming:
      letter->state_ = Letter::State::on_lane;
      to.writer = letter;
      break;
    default: break;
  }
  return true;
}

std::optional<Mail::Left> Mail::unreceived() const {
  if (parked_.empty()) return std::nullopt;
  return Left{.from = parked_.front().from->world, .header = parked_.front().header};
}

// --- receiving ---------------------------------------------------------------------------------------------------------------

void Mail::take_in() {
  for (auto& [world, peer] : peers_) {
    if (!peer.left) take_in(world);
  }
}

void Mail::take_in(int world) {
  // A header that opens the sender's window has nobody else who sends it. Of a lane that is cut nobody here needs anything.
  attend(peer(world), {.op = Op::recv});
}

/// Takes what has arrived from a peer, and sends what is due to it. Returns false if its lane is cut: whatever came before was
/// taken, and perhaps all that the operation needs.
bool Mail::attend(Peer& at, const OperationInfo& mine) {
  if (!receive_from(at, mine)) return false;
  flush(at);
  return true;
}

/// Takes what has arrived from a peer. Returns false if its lane is cut; throws if what came is not what was to come.
bool Mail::receive_from(Peer& at, const OperationInfo& mine) {
  while (at.coming == nullptr) {
    if (at.ticket == kNotNow) {
      const std::span<std::byte> into = at.next == Part::header ? std::as_writable_bytes(std::span(&at.header, 1))
                                        : at.next == Part::seal ? std::as_writable_bytes(std::span(&at.seal, 1))
                                                                : at.into;
      const std::uint32_t header = at.next == Part::header ? at.headers_in + 1 : at.headers_in;
      const Purpose purpose = at.next == Part::payload ? at.purpose : Purpose::none;
      at.ticket = at.transport->receive(at.lane, envelope_of(header, at.next, purpose), into);
      if (at.ticket == kNotNow) return true;
    }
    const Outcome outcome = at.transport->test_receive(at.lane, at.ticket);
    if (outcome == Outcome::pending) return true;
    if (outcome == Outcome::disconnected) return false;
    if (outcome != Outcome::done) engine_->fail_receive(outcome, at.world, at.lane, *at.transport, mine);
    at.ticket = kNotNow;
    engine_->moved();
    switch (std::exchange(at.next, Part::header)) {
      case Part::header:
        ++at.headers_in;
        opened(at);
        break;
      case Part::seal: match(at); break;
      case Part::payload: small_arrived(at); break;
    }
  }
  return true;
}

/// Throws because the lane of a peer is cut that this operation still needs. A receive from any source, which can do without a
/// peer that has left in good order, goes on.
void Mail::cut_off(Peer& at, const OperationInfo& mine) const {
  if (mine.op == Op::recv && mine.root < 0 && has_left(at)) return;
  engine_->fail_receive(Outcome::disconnected, at.world, at.lane, *at.transport, mine);
}

/// Returns true if a peer whose lane is cut has left in good order, or may be found to have done so in a moment.
bool Mail::has_left(Peer& at) const {
  const std::uint64_t now = engine_->clock().now_ns();
  if (at.cut_since_ns == 0) at.cut_since_ns = now;
  at.left = engine_->board().life(at.world) == Life::finished;
  return at.left || now - at.cut_since_ns < wait_for_word_ns(engine_->options().timeout_ns);
}

/// Acts on a header that has arrived.
void Mail::opened(Peer& from) {
  const Header& header = from.header;
  from.small_taken = header.taken;
  switch (header.kind) {
    case Kind::small:
    case Kind::announced: {
      if (static_cast<std::size_t>(header.dtype) >= kDTypeCount || header.tag < kNoTag) damaged(from, "its type or tag");
      if (header.kind == Kind::small && header.bytes > kSmallMail) damaged(from, "a small message larger than one may be");
      if (header.kind == Kind::small && static_cast<std::uint16_t>(++from.small_in - from.taken) > kMailWindow) {
        damaged(from, "more small messages than may come unasked");
      }
      if (header.tag == kNoTag) from.next = Part::seal;
      else match(from);
      return;
    }
    case Kind::wanted: {
      const auto at = std::ranges::find(from.announced, header.number, &Letter::number_);
      if (at == from.announced.end()) damaged(from, "it wants a message that wasn't announced");
      (*at)->state_ = Letter::State::wanted;
      from.announced.erase(at);
      return;
    }
    case Kind::coming: {
      const auto at =
          std::ranges::find_if(from.asked, [&](const Request* each) { return each->header_.number == header.number; });
      if (at == from.asked.end()) damaged(from, "a payload that wasn't asked for");
      (*at)->state_ = Request::State::coming;
      from.coming = *at;
      from.asked.erase(at);
      return;
    }
    case Kind::taken: return;
    default: damaged(from, "its kind");
  }
}

/// Finds the receive that fits the message which has begun to arrive, or sets the message aside.
void Mail::match(Peer& from) {
  const Header& header = from.header;
  Request* request = find(from, header);
  std::span<std::byte> into;
  if (request != nullptr) {
    remove(requests_, request);
    request->from_ = &from;
    request->header_ = header;
    request->came_ = from.seal;
    request->check();
    request->state_ = header.kind == Kind::small ? Request::State::filling : Request::State::announced;
    into = request->into_;
    if (request->is_another() && header.kind == Kind::small) {
      request->parked_.resize(header.bytes);
      into = request->parked_;
    }
  } else {
    parked_.push_back({&from, header, from.seal, {}});
    if (header.kind == Kind::small) parked_.back().payload.resize(header.bytes);
    into = parked_.back().payload;
  }
  if (header.kind == Kind::announced) return;
  from.filling = request;
  from.next = Part::payload;
  from.into = into;
  from.purpose = request != nullptr ? request->purpose_ : Purpose::unasked;
  if (header.bytes == 0) small_arrived(from);
}

/// Hands on a small payload that has arrived.
void Mail::small_arrived(Peer& from) {
  from.next = Part::header;
  if (from.filling == nullptr) return;
  if (from.purpose == Purpose::unasked) unasked_taken_[static_cast<std::size_t>(from.filling->purpose_)] += from.header.bytes;
  from.filling->state_ = Request::State::here;
  from.filling = nullptr;
  take_small(from);
}

/// Counts a small message that a receive has taken, and opens the sender's window if that is due.
void Mail::take_small(Peer& from) {
  ++from.taken;
  if (static_cast<std::uint16_t>(from.taken - from.taken_told) < kMailWindow / 2) return;
  // One is enough: what is taken until it leaves, it tells, too.
  const bool due = std::ranges::any_of(from.outbox, [](const Outgoing& each) { return each.header.kind == Kind::taken; });
  if (!due)
    from.outbox.push_back(
        {.header = {.kind = Kind::taken, .dtype = {}, .taken = 0, .tag = 0, .bytes = 0, .group = 0, .number = 0}});
  flush(from);
}

/// Returns the first receive that a message fits; null if there is none.
Mail::Request* Mail::find(const Peer& from, const Header& header) {
  for (Request* each : requests_) {
    if (each->takes(from, header)) return each;
  }
  return nullptr;
}

/// Returns true if the message is one that the receive may take.
bool Mail::Request::takes(const Peer& from, const Header& header) const {
  const bool any = tag_ == kAnyTag && header.tag != kNoTag;
  return group_ == header.group && (any || tag_ == header.tag) && std::ranges::find(sources_, &from) != sources_.end();
}

Mail::Request::Request(Mail& mail, std::span<const int> from, std::uint64_t group, std::int32_t tag, DType dtype,
                       std::span<std::byte> into, Purpose purpose, const Seal& seal)
    : mail_(&mail),
      group_(static_cast<std::uint32_t>(group)),
      tag_(tag),
      dtype_(dtype),
      into_(into),
      purpose_(purpose),
      seal_(seal) {
  sources_.reserve(from.size());
  for (const int world : from) sources_.push_back(&mail.peer(world));
  for (auto at = mail.parked_.begin(); at != mail.parked_.end(); ++at) {
    const Header& header = at->header;
    if (!takes(*at->from, header)) continue;
    from_ = at->from;
    header_ = header;
    came_ = at->seal;
    if (header.kind == Kind::announced) {
      state_ = State::announced;
      mail.parked_.erase(at);
    } else if (from_->next == Part::payload && from_->filling == nullptr && from_->into.data() == at->payload.data()) {
      // The payload is still on its way: it goes on to its place, from which it is taken.
      state_ = State::filling;
      from_->filling = this;
      parked_ = std::move(at->payload);
      mail.parked_.erase(at);
    } else {
      state_ = State::parked;
      parked_ = std::move(at->payload);
      mail.parked_.erase(at);
    }
    return;
  }
  mail.requests_.push_back(this);
}

Mail::Request::~Request() {
  if (state_ == State::here) return;
  remove(mail_->requests_, this);
  if (from_ == nullptr) return;
  if (from_->filling == this && !parked_.empty()) mail_->parked_.push_back({from_, header_, came_, std::move(parked_)});
  remove(from_->asked, this);
  if (from_->filling == this) from_->filling = nullptr;
  if (from_->coming == this) from_->coming = nullptr;
}

int Mail::Request::from() const { return from_ == nullptr ? -1 : from_->world; }

/// Throws if the message that fits isn't what was to be received.
void Mail::Request::check() const {
  if (tag_ == kNoTag || (header_.dtype == dtype_ && header_.bytes == into_.size())) return;
  mail_->engine_->fail(Cause::mismatch, mail_->engine_->world_rank(),
                       fmt::format("rank {} receives {} ({} B, tag {}); the message of rank {} with tag {} is of {} ({} B): a "
                                   "message must have the type and size of its receive",
                                   mail_->engine_->world_rank(), name(dtype_), into_.size(),
                                   tag_ == kAnyTag ? std::string("any") : std::to_string(tag_), from_->world, header_.tag,
                                   name(header_.dtype), header_.bytes));
}

bool Mail::Request::here_or_coming(const OperationInfo& mine) {
  if (state_ == State::open) {
    for (Peer* source : sources_) {
      const bool cut = !source->left && !mail_->attend(*source, mine);
      if (state_ != State::open) break;
      if (cut) mail_->cut_off(*source, mine);
    }
  } else if (state_ == State::filling || state_ == State::asked) {
    const bool cut = !mail_->attend(*from_, mine);
    if (cut && (state_ == State::filling || state_ == State::asked)) mail_->cut_off(*from_, mine);
  }
  if (from_ != nullptr && !checked_) {
    check();
    checked_ = true;
  }
  if (is_another()) return false;
  if (state_ == State::announced) {
    state_ = State::asked;
    from_->asked.push_back(this);
    Header header = header_;
    header.kind = Kind::wanted;
    from_->outbox.push_back({.header = header});
    mail_->flush(*from_);
  }
  if (state_ == State::parked || (state_ == State::here && !parked_.empty())) {
    if (!parked_.empty()) std::memcpy(into_.data(), parked_.data(), parked_.size());
    parked_ = {};
    if (state_ == State::parked) {
      state_ = State::here;
      mail_->unasked_taken_[static_cast<std::size_t>(purpose_)] += header_.bytes;
      mail_->take_small(*from_);
    }
  }
  return state_ == State::here || state_ == State::coming;
}

void Mail::Request::received() {
  state_ = State::here;
  from_->coming = nullptr;
}

}  // namespace tsprun::detail
