// Messages with a tag: each receive takes the first message that fits its source and tag, whatever came before it. They have a
// lane of their own to each peer (kTagged), on which a rank sends headers of 24 bytes.
//
// · A message of up to kSmallMail bytes, while the window is open: header (small), payload.
// · Any other: header (announced) there; header (wanted) back, once a receive fits; header (coming) and payload there.
// · A message of a channel (channel.h) has the tag kNoTag, and behind its first header a seal, by which its receive knows it:
//
//   0        24      40                         0            24      40
//   ┌────────┬───────┬──────────────┐           ┌────────────┬───────┐
//   │ header │ seal  │ payload      │           │ header     │ seal  │   the sender writes, the receiver reads; three messages
//   │ small  │       │              │           │ announced  │       │   of the lane, or two
//   └────────┴───────┴──────────────┘           └────────────┴───────┘
//
// A header that fits no receive is set aside, and so is the payload of a small message; the payload of an announced one stays
// with its sender. So what lies here unasked is bounded: kMailWindow small messages of each sender, and a header for each send
// that its sender waits for. `taken` in every header opens the sender's window again; if nothing else is to be sent, a header of
// its own (taken) does. Nothing here waits: the operations of messages call in their steps, and what arrives for others meanwhile
// is theirs. While the rank waits in another operation, the engine takes in what would stop a sender's way (take_in()).
#pragma once

#include "core/streams/engine.h"
#include "transport/transport.h"
#include "tsprun/communicator.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Largest payload, in bytes, that is sent before a receive wants it.
inline constexpr std::size_t kSmallMail = 8 * 1024;
/// Number of small messages that a rank sends to another before the first of them was taken.
inline constexpr std::uint16_t kMailWindow = 64;

/// The messages with a tag of one rank; used by whoever uses the engine. Transports write into it, so it must outlive them.
class Mail {
 public:
  enum class Kind : std::uint8_t { undecided, small, announced, wanted, coming, taken };

  /// Header of a message, as it travels.
  struct Header {
    Kind kind;
    DType dtype;
    std::uint16_t taken;   ///< low bits of the number of the receiver's small messages that the sender has taken
    std::int32_t tag;      ///< not negative, or kNoTag
    std::uint64_t bytes;   ///< size of the payload
    std::uint32_t group;   ///< low bits of the group's number
    std::uint32_t number;  ///< number of the message among those to this receiver, from 1
  };
  static_assert(sizeof(Header) == 24, "fits the message's own line over shm");

  /// Seal of a message of a channel, as it travels: the fields of its Envelope, in which both ends must agree.
  struct Seal {
    std::uint64_t signature;
    std::uint32_t sequence;
    std::uint32_t tag;
    bool operator==(const Seal&) const = default;
  };
  static_assert(sizeof(Seal) == 16, "fits the message's own line over shm");

 private:
  struct Peer;

 public:
  /// A message to be sent, registered from its construction to its destruction; messages to one rank leave in the order of
  /// construction.
  class Letter {
   public:
    /// `to`: world rank. The payload must not change until sent(). `seal`: of a message of a channel, whose tag is kNoTag.
    Letter(Mail& mail, int to, std::uint64_t group, std::int32_t tag, DType dtype, std::span<const std::byte> payload,
           Purpose purpose, const Seal& seal = {});
    Letter(const Letter&) = delete;
    Letter& operator=(const Letter&) = delete;
    ~Letter();

    /// Number of the message among those to its receiver.
    std::uint32_t number() const { return number_; }
    /// Does what can be done now. Returns true once the payload was sent, or is wanted.
    bool sent_or_wanted(const OperationInfo& mine);
    /// True if the payload was sent with the header.
    bool sent() const { return state_ == State::sent; }
    /// Asks for the lane, to send the wanted payload. Returns true once nothing but the payload may be sent on it.
    bool has_lane(const OperationInfo& mine);
    /// Tells that the payload was sent.
    void give_back_lane();
    /// Tells that the same bytes lie elsewhere from now on.
    void payload_is_at(std::span<const std::byte> payload) { payload_ = payload; }

   private:
    friend class Mail;
    enum class State : std::uint8_t { queued, announced, wanted, due, on_lane, sent };
    void announce(Kind kind);
    Mail* mail_;
    Peer* to_;
    std::uint64_t group_;
    std::int32_t tag_;
    DType dtype_;
    std::span<const std::byte> payload_;
    Purpose purpose_;
    Seal seal_;
    std::uint32_t number_ = 0;
    State state_ = State::queued;
  };

  /// A receive, registered likewise; a message that fits several is for the one that was constructed first.
  class Request {
   public:
    /// `from`: world ranks, any of which may be the sender. `tag`: kAnyTag, a tag, or kNoTag: the channel's message whose turn it
    /// is, which must have this seal.
    Request(Mail& mail, std::span<const int> from, std::uint64_t group, std::int32_t tag, DType dtype, std::span<std::byte> into,
            Purpose purpose, const Seal& seal = {});
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    ~Request();

    /// Does what can be done now. Returns true once the message is in the buffer, or its payload is the next thing that its
    /// sender's lane brings. Throws Error(mismatch) if the message that fits has another type or size; of a channel's message
    /// is_another() tells that.
    bool here_or_coming(const OperationInfo& mine);
    /// True if the channel's message has another seal or size, and so isn't taken.
    bool is_another() const { return tag_ == kNoTag && from_ != nullptr && !(came_ == seal_ && header_.bytes == into_.size()); }
    /// True if the payload is the next on the lane of from(), where the caller must receive it.
    bool coming() const { return state_ == State::coming; }
    /// Tells that the payload was received.
    void received();
    /// World rank of the sender; -1 until a message fits.
    int from() const;
    /// Tag and number of the message that fits.
    const Header& header() const { return header_; }
    /// Seal of the channel's message that came.
    const Seal& seal() const { return came_; }

   private:
    friend class Mail;
    enum class State : std::uint8_t { open, parked, filling, announced, asked, coming, here };
    void check() const;
    bool takes(const Peer& from, const Header& header) const;
    Mail* mail_;
    std::vector<Peer*> sources_;
    std::uint32_t group_;
    std::int32_t tag_;
    DType dtype_;
    std::span<std::byte> into_;
    Purpose purpose_;
    Seal seal_;
    State state_ = State::open;
    bool checked_ = false;
    Peer* from_ = nullptr;
    Header header_{};
    Seal came_{};
    std::vector<std::byte> parked_;  // the payload, if it came before the receive
  };

  explicit Mail(Engine& engine) : engine_(&engine) {}
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// A message that was set aside.
  struct Left {
    int from = -1;  ///< world rank
    Header header{};
  };
  /// Returns the first of the messages that no receive has taken so far; none: there is none.
  std::optional<Left> unreceived() const;

  /// Returns the bytes of payloads that came before their receives, by the purposes of the receives that have taken them since.
  /// Transports have counted them as Purpose::unasked.
  const std::array<std::uint64_t, kPurposes + 2>& unasked_taken() const { return unasked_taken_; }

  /// Sets aside what has come from all ranks that this one has exchanged messages with, and sends what is due to them.
  void take_in();
  /// Does the same for one rank, with which this one may have exchanged none yet.
  void take_in(int world);

 private:
  /// Part of a message that a lane carries at once.
  enum class Part : std::uint8_t { header, payload, seal };
  /// A header to be sent, and the message that it is about.
  struct Outgoing {
    Header header{};
    Letter* letter = nullptr;
    bool stamped = false;  // the header says what was taken; a send that is tried again must send the same bytes
  };
  /// A message that no receive wanted when its header came.
  struct Parked {
    Peer* from;
    Header header;
    Seal seal;
    std::vector<std::byte> payload;  // of a small one
  };
  /// State of the exchange with one rank.
  struct Peer {
    int world = -1;
    Transport* transport = nullptr;
    LaneId lane{-1, kTagged};
    // outgoing
    std::deque<Outgoing> outbox;
    int parts_sent = 0;              // of the outbox's first
    Letter* writer = nullptr;        // the message whose payload alone may be sent now
    std::vector<Letter*> announced;  // messages that wait until they are wanted
    std::uint32_t letters = 0;
    std::uint32_t headers_out = 0;
    std::uint16_t small_sent = 0;
    std::uint16_t small_taken = 0;  // by the peer
    // incoming
    Header header{};
    Seal seal{};
    bool left = false;               // in good order: nothing comes any more
    std::uint64_t cut_since_ns = 0;  // since when its lane is known to be cut; 0: it isn't
    std::uint32_t headers_in = 0;
    Ticket ticket = kNotNow;     // of the receive of the next part; kNotNow: to be posted
    Part next = Part::header;    // what comes next,
    std::span<std::byte> into;   // a small payload to this place,
    Request* filling = nullptr;  // for this receive; null: it is set aside
    Purpose purpose = Purpose::none;
    Request* coming = nullptr;    // the receive that takes the lane's next message itself
    std::vector<Request*> asked;  // receives that wait for an announced payload
    std::uint16_t small_in = 0;   // small messages of the peer
    std::uint16_t taken = 0;      // of those, by receives
    std::uint16_t taken_told = 0;

    bool window_is_open() const { return static_cast<std::uint16_t>(small_sent - small_taken) < kMailWindow; }
  };

  Peer& peer(int world);
  bool attend(Peer& at, const OperationInfo& mine);
  bool receive_from(Peer& at, const OperationInfo& mine);
  void cut_off(Peer& at, const OperationInfo& mine) const;
  bool has_left(Peer& at) const;
  void flush(Peer& to);
  bool send_first(Peer& to);
  void opened(Peer& from);
  void match(Peer& from);
  void small_arrived(Peer& from);
  void take_small(Peer& from);
  Request* find(const Peer& from, const Header& header);
  static Envelope envelope_of(std::uint32_t header, Part part, Purpose purpose);
  [[noreturn]] void damaged(const Peer& from, const char* what) const;

  Engine* engine_;
  std::array<std::uint64_t, kPurposes + 2> unasked_taken_{};
  std::map<int, Peer> peers_;
  std::vector<Request*> requests_;  // that no message fits so far, in the order of their construction
  std::list<Parked> parked_;        // in the order of arrival
};

}  // namespace tsprun::detail
