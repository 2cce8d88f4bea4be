// Proves to each end of a socket that the other knows the job's secret, without sending it. The bytes that follow aren't
// protected, so sockets within a machine use this, and sockets between machines TLS (tls/channel.h).
//
//   connector                          acceptor
//      │  greeting (64 B, a nonce)  ──▶  │   checks magic, use and role
//      │  ◀── greeting (64 B, a nonce)   │
//      │  proof (32 B)              ──▶  │   checks it before it proves anything itself
//      │  ◀── proof (32 B)               │
//
// A proof is HMAC-SHA-256(secret, role of the prover, connector's greeting, acceptor's greeting). It covers both nonces, so it
// can't be replayed, and the role, so it can't be reflected. All sizes are fixed: a stranger can make this end read at most 96
// bytes.
#pragma once

#include "transport/bootstrap/secret.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {

/// Reasons for which an end with TLS and an end without it refuse each other, as each says it of the other.
inline constexpr std::string_view kWithoutTls = "it speaks without TLS, this end with it: give all nodes the same --tls";
inline constexpr std::string_view kWithTls = "it speaks TLS, this end doesn't: give all nodes the same --tls";

/// Use of a connection; both ends must agree on it.
enum class ConnectionUse : std::uint32_t { store = 1, lanes = 2 };

/// First packet of either end.
///
///   0 ┌───────┬──────┬──────┬──────┬────┬─────────┬───────────┐
///     │ magic │ use  │ role │ from │ to │ padding │ nonce, 32 │
///     └───────┴──────┴──────┴──────┴────┴─────────┴───────────┘ 64
struct Greeting {
  std::uint64_t magic;
  std::uint32_t use;
  std::uint32_t role;  ///< 1 connector, 2 acceptor
  std::int32_t from;   ///< name of this end: a rank, or a number on which the link's users agree
  std::int32_t to;     ///< name that the connector wants to reach; the acceptor repeats it
  std::uint64_t padding;
  std::byte nonce[32];
};
static_assert(sizeof(Greeting) == 64);

/// One end of the handshake, without a socket: the caller moves the bytes.
class Handshake {
 public:
  /// Begins a handshake: `from` and `self` name this end, `to` the end that the connector wants to reach. Throw Error(refused)
  /// if libcrypto fails.
  static Handshake connector(const Secret& secret, ConnectionUse use, int from, int to);
  static Handshake acceptor(const Secret& secret, ConnectionUse use, int self);

  /// Returns the bytes to be sent now; tell sent() how many the socket took.
  std::span<const std::byte> to_send() const { return std::span(out_).subspan(sent_); }
  void sent(std::size_t bytes) { sent_ += bytes; }
  /// Returns how many bytes may be read now. Read no more: the bytes after them belong to the link.
  std::size_t wanted() const { return failed() ? 0 : expected_ - in_.size(); }
  /// Takes bytes that were read. Precondition: at most wanted() of them.
  void received(std::span<const std::byte> bytes);

  /// Returns true once the other end has sent a valid greeting. It hasn't proved anything by that.
  bool greeted() const { return greeted_; }
  /// Returns true once both ends have proved that they know the secret, and everything was sent.
  bool done() const { return proved_ && sent_ == out_.size(); }
  bool failed() const { return !refusal_.empty(); }
  /// Returns why the other end was refused; empty if it wasn't.
  const std::string& refusal() const { return refusal_; }
  /// Returns the name that the other end gives itself. Proved once done().
  int peer() const { return theirs_.from; }
  /// Returns the name that the other end wanted to reach. Acceptor only.
  int sought() const { return theirs_.to; }

 private:
  Handshake(const Secret& secret, ConnectionUse use, bool connector, int from, int to);
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

}  // namespace tsprun::detail::bootstrap
