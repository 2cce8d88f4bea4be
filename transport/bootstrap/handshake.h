// How two ends of a socket prove to each other that they know the job's secret, without sending it, where the bytes behind the
// proof need no protection: within a machine. Between machines TLS takes its place (tls/channel.h).
//
//   connector                          acceptor
//      │  greeting (64 B, a nonce)  ──▶  │   checked: magic, what for, the other role
//      │  ◀── greeting (64 B, a nonce)   │
//      │  proof (32 B)              ──▶  │   checked before the acceptor proves anything itself
//      │  ◀── proof (32 B)               │
//
// A proof is HMAC-SHA-256(secret, role of the prover, connector's greeting, acceptor's greeting). Both nonces are in it, so
// nothing can be replayed; the role is in it, so nothing can be reflected. All sizes are fixed: a stranger can make this end read
// at most 96 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::bootstrap {

using Secret = std::array<std::byte, 32>;

/// Fresh random bytes. Throws Error(refused) if the system has none.
Secret random_secret();
/// The secret of a job out of a text that all nodes share (any length but empty): SHA-256 of it.
Secret secret_from_text(std::string_view text);

/// Another secret out of this one: HKDF-SHA-256 with `salt`, and `label` and `context` as info. Without the first the second
/// tells nothing, and the other way round. Throws Error(refused) if libcrypto can't.
Secret derive(const Secret& secret, std::string_view label, std::span<const std::byte> salt,
              std::span<const std::byte> context = {});

/// Why an end with TLS and one without it refuse each other, as each of them says it of the other.
inline constexpr std::string_view kWithoutTls = "it speaks without TLS, this end with it: give all nodes the same --tls";
inline constexpr std::string_view kWithTls = "it speaks TLS, this end doesn't: give all nodes the same --tls";

/// What a connection is for; both ends must mean the same.
enum class Link : std::uint32_t { store = 1, lanes = 2 };

///   0 ┌───────┬──────┬──────┬──────┬────┬─────────┬───────────┐
///     │ magic │ link │ role │ from │ to │ padding │ nonce, 32 │
///     └───────┴──────┴──────┴──────┴────┴─────────┴───────────┘ 64
struct Greeting {
  std::uint64_t magic;
  std::uint32_t link;
  std::uint32_t role;  ///< 1 connector, 2 acceptor
  std::int32_t from;   ///< who speaks: a rank, or what the link's users agree on
  std::int32_t to;     ///< whom the connector wants to reach; the acceptor repeats it
  std::uint64_t padding;
  std::byte nonce[32];
};
static_assert(sizeof(Greeting) == 64);

/// One end's part, without a socket: the caller moves the bytes.
class Handshake {
 public:
  static Handshake connector(const Secret& secret, Link link, int from, int to);
  static Handshake acceptor(const Secret& secret, Link link, int self);

  /// What must be sent now; call sent() with what the socket took.
  std::span<const std::byte> to_send() const { return std::span(out_).subspan(sent_); }
  void sent(std::size_t bytes) { sent_ += bytes; }
  /// How many bytes may be read now: never more, for what follows belongs to the link.
  std::size_t wanted() const { return failed() ? 0 : expected_ - in_.size(); }
  /// Precondition: at most wanted() bytes.
  void received(std::span<const std::byte> bytes);

  /// The other end has greeted as one who knows the protocol does: it may still be anyone.
  bool greeted() const { return greeted_; }
  /// Both ends have proved themselves and everything was sent.
  bool done() const { return proved_ && sent_ == out_.size(); }
  bool failed() const { return !refusal_.empty(); }
  /// Why the other end was refused.
  const std::string& refusal() const { return refusal_; }
  /// Who the other end says it is; believed once done().
  int peer() const { return theirs_.from; }
  /// Acceptor: whom the other end wanted to reach.
  int sought() const { return theirs_.to; }

 private:
  Handshake(const Secret& secret, Link link, bool connector, int from, int to);
  void hear_greeting();
  void hear_proof();
  std::array<std::byte, 32> proof(bool of_connector) const;
  void send(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

  Secret secret_;
  bool connector_;
  bool greeted_ = false;
  bool proved_ = false;
  Greeting mine_{};
  Greeting theirs_{};
  std::vector<std::byte> out_;
  std::size_t sent_ = 0;
  std::vector<std::byte> in_;
  std::size_t expected_;
  std::string refusal_;
};

}  // namespace tsprun::bootstrap
