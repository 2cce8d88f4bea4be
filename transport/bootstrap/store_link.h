// One end of a proven connection (tls/channel.h) between the job's key-value store and a client: frames of a key and a value,
// non-blocking. Every length is checked, and so are hashes (XXH3): with a plain channel nothing else finds a changed byte.
//
//    0 ┌───────┬────┬───────────┬─────────────┬─────────┐
//      │ magic │ op │ key bytes │ value bytes │ padding │
//   16 ├───────┴────┴──────┬────┴─────────────┴─────────┤
//      │ payload hash      │ header hash                │ then the key, then the value: the payload
//      └───────────────────┴────────────────────────────┘ 32
//
// An end that finds damage says so to the other, by a frame or an alert of TLS, so that both know why the link ends.
#pragma once

#include "transport/tls/channel.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Returns a text's bytes, as values of the store are written.
inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
/// Returns a value of the store as text.
inline std::string text_of(const std::vector<std::byte>& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

namespace bootstrap {

inline constexpr std::size_t kMostKeyBytes = 256;
inline constexpr std::size_t kMostValueBytes = 65536;

/// Header of an entry in a frame `gathered` (gathering.h); the value follows.
struct GatheredEntry {
  std::uint32_t number;
  std::uint32_t bytes;
};
static_assert(sizeof(GatheredEntry) == 8);
/// Most bytes of a frame `gathered`: an entry of the longest value fits, behind the id.
inline constexpr std::size_t kMostGatheredBytes = sizeof(std::uint32_t) + sizeof(GatheredEntry) + kMostValueBytes;

/// Numbers of keys that can be gathered are below this.
inline constexpr std::size_t kMostNumbers = 8 * (kMostValueBytes - 64);

/// Kind of a frame. A number keeps its meaning: ends of unlike versions must at least understand why the other gives up.
enum class StoreOp : std::uint16_t {
  set = 1,    ///< client to server: set the key to this value
  get,        ///< client to server: send the key's value as soon as it has one
  subscribe,  ///< client to server: send what is and what will be set under keys with this prefix
  value,      ///< server to client: answer to a get or a subscription
  damaged,    ///< the last frame before an end gives up the link: what came wasn't what the other end sent
  gather,     ///< client to server: send the values of these numbered keys (gathering.h)
  gathered    ///< server to client: some of those values
};

/// Returns the most bytes that the value of such a frame may have.
constexpr std::size_t most_value_bytes(StoreOp op) { return op == StoreOp::gathered ? kMostGatheredBytes : kMostValueBytes; }

/// Header of a frame, drawn above.
struct StoreHeader {
  std::uint32_t magic;
  std::uint16_t op;
  std::uint16_t key_bytes;
  std::uint32_t value_bytes;
  std::uint32_t padding;
  std::uint64_t payload_hash;
  std::uint64_t header_hash;  ///< of what stands before it
};
static_assert(sizeof(StoreHeader) == 32);

/// Returns the header of a frame.
StoreHeader header_of(StoreOp op, std::string_view key, std::span<const std::byte> value);

/// A frame, unpacked.
struct StoreFrame {
  StoreOp op = StoreOp::value;
  std::string key;
  std::vector<std::byte> value;
};

/// One end of a link. One thread at a time.
class StoreLink {
 public:
  explicit StoreLink(tls::Channel channel) : channel_(std::move(channel)) {}

  /// Moves bytes as far as the socket allows; take complete frames with next(). Returns false once the link is over.
  bool pump();
  /// Queues a frame. Precondition: key and value are within the limits above. Frames may be sent before the proof is complete;
  /// they wait for it.
  void send(StoreOp op, std::string_view key, std::span<const std::byte> value);
  /// Takes the next frame that has arrived; false if there is none.
  bool next(StoreFrame& frame);
  /// Takes the first answer of this kind and key that has arrived, and leaves all other frames for next(); empty if there is
  /// none.
  std::optional<std::vector<std::byte>> take(std::string_view key, StoreOp op = StoreOp::value);
  /// Forgets all frames of a kind that have arrived.
  void discard(StoreOp op) {
    std::erase_if(frames_, [op](const StoreFrame& each) { return each.op == op; });
  }
  /// Writes as far as the socket allows, without reading. Returns false once nothing can be written any more.
  bool flush() { return !over() && (!ready() || write()); }

  int descriptor() const { return channel_.descriptor(); }
  /// Returns true once both ends have proved that they know the secret.
  bool ready() const { return channel_.ready(); }
  /// Returns true once the other end has greeted (see Channel::greeted()).
  bool greeted() const { return channel_.greeted(); }
  /// Returns true if the link is over and the other end sent nothing at all.
  bool turned_away() const { return over() && !channel_.greeted() && channel_.refusal().empty(); }
  /// Returns true if there is something to write: the caller waits until the socket is writable.
  bool wants_room() const { return ready() ? backlog() != 0 : channel_.has_to_send(); }
  /// Returns the bytes that this end's kernel hasn't taken.
  std::size_t backlog() const { return out_.size() - out_sent_ + channel_.unsent(); }
  /// Returns the bytes that frames take in this process until the kernel has them, with those of it that it has already.
  std::size_t held() const { return out_.size() + channel_.unsent(); }
  int peer() const { return channel_.peer(); }
  bool over() const { return !why_over_.empty(); }
  /// Returns why the link is over; empty while it isn't.
  const std::string& why_over() const { return why_over_; }
  /// Returns true if the link is over because the other end broke the protocol.
  bool broke_rules() const { return broke_rules_; }
  /// Returns true if the link is over because what one end got isn't what the other had sent.
  bool damaged() const { return damaged_; }

 private:
  bool end(const std::string& why);
  bool refuse(const std::string& why);
  bool refuse_damage(const std::string& why);
  bool shake();
  bool write();
  bool read();
  bool parse();

  tls::Channel channel_;
  std::vector<std::byte> out_;
  std::size_t out_sent_ = 0;
  bool broke_rules_ = false;
  bool damaged_ = false;
  std::string why_mute_;  ///< why nothing can be written any more; empty while it can
  std::vector<std::byte> in_;
  std::deque<StoreFrame> frames_;
  std::string why_over_;
};

}  // namespace bootstrap
}  // namespace tsprun::detail
