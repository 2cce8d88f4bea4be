// One end of a proven connection (tls/channel.h) to the job's key-value store: frames of a key and a value, non-blocking, every
// length checked.
//
//    0 ┌───────┬────┬───────────┬─────────────┬─────────┐
//      │ magic │ op │ key bytes │ value bytes │ padding │ then the key, then the value
//      └───────┴────┴───────────┴─────────────┴─────────┘ 16
#pragma once

#include "transport/tls/channel.h"

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::bootstrap {

inline constexpr std::size_t kMostKeyBytes = 256;
inline constexpr std::size_t kMostValueBytes = 65536;

enum class StoreOp : std::uint16_t {
  set = 1,    ///< client to server: the key has this value from now on
  get,        ///< client to server: send me the key's value as soon as it has one
  subscribe,  ///< client to server: send me everything that is set under keys that begin so, what is there already included
  value       ///< server to client: an answer
};

struct StoreHeader {
  std::uint32_t magic;
  std::uint16_t op;
  std::uint16_t key_bytes;
  std::uint32_t value_bytes;
  std::uint32_t padding;
};
static_assert(sizeof(StoreHeader) == 16);

struct StoreFrame {
  StoreOp op = StoreOp::value;
  std::string key;
  std::vector<std::byte> value;
};

class StoreLink {
 public:
  explicit StoreLink(tls::Channel channel) : channel_(std::move(channel)) {}

  /// Moves bytes as far as the socket allows; frames that came whole wait in next(). False once the link is over.
  bool pump();
  /// Precondition: sizes within the limits. Frames may be sent before both ends have proved themselves: they wait.
  void send(StoreOp op, std::string_view key, std::span<const std::byte> value);
  bool next(StoreFrame& frame);
  /// Only the writing half of pump().
  bool flush() { return !over() && (!ready() || write()); }

  int descriptor() const { return channel_.descriptor(); }
  bool ready() const { return channel_.ready(); }
  /// The other end has greeted (see Channel::greeted()).
  bool greeted() const { return channel_.greeted(); }
  /// The link is over, and the other end has said nothing at all to this one.
  bool turned_away() const { return over() && !channel_.greeted() && channel_.refusal().empty(); }
  /// There is something to write: the caller waits for room.
  bool wants_room() const { return ready() ? backlog() != 0 : channel_.has_to_send(); }
  /// Bytes that this end's kernel hasn't taken.
  std::size_t backlog() const { return out_.size() - out_sent_ + channel_.unsent(); }
  /// Bytes of which the other end's kernel hasn't said that they came, of frames sent after the handshake.
  std::size_t unacknowledged() const;
  int peer() const { return channel_.peer(); }
  bool over() const { return !why_over_.empty(); }
  /// Why the link is over; empty while it isn't.
  const std::string& why_over() const { return why_over_; }
  /// It is over because the other end sent what nobody may send.
  bool broke_rules() const { return broke_rules_; }

 private:
  bool end(const std::string& why);
  bool refuse(const std::string& why);
  bool shake();
  bool write();
  bool read();
  bool parse();

  tls::Channel channel_;
  std::vector<std::byte> out_;
  std::size_t out_sent_ = 0;
  bool broke_rules_ = false;
  std::string why_mute_;  ///< why nothing can be written any more; empty while it can
  std::vector<std::byte> in_;
  std::deque<StoreFrame> frames_;
  std::string why_over_;
};

}  // namespace tsprun::bootstrap
