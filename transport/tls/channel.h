// One end of a socket whose other end must know the job's secret: the proof, and the bytes behind it. Two ways, which both ends
// must have been told alike:
//
//   plain   the proof of handshake.h, then the bytes as they are. Costs nothing per byte; who can change what travels can change
//           what arrives. For sockets within a machine.
//   TLS     TLS 1.3 (RFC 8446) by OpenSSL's libssl with an external pre-shared key and an ephemeral X25519 exchange, no
//           certificates, no tickets, no early data. Every byte is encrypted and authenticated, and what was recorded can't be
//           read later by one who comes to know the secret.
//
// The pre-shared key is another one for each connection: HKDF-SHA-256 of the secret, salted with the nonce of the connector's
// greeting, the whole greeting as info. The greeting (who speaks, to whom, what for) is the key's identity, so that none of it
// can be changed on the way:
//
//   connector                                        acceptor
//      │  ClientHello {greeting, X25519, binder}  ──▶  │   checked: the greeting, then the binder, before it says anything
//      │  ◀── ServerHello {X25519}, Finished           │
//      │  Finished                                ──▶  │
//      │  ◀── one byte, encrypted: welcome             │
//
// Nothing here blocks. With TLS both directions go through buffers of this class, so that one system call moves several records.
#pragma once

#include "transport/bootstrap/handshake.h"
#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

struct iovec;

namespace tsprun::tls {

/// The job's secret, and how connections use it.
struct Credentials {
  // NOLINTNEXTLINE(google-explicit-constructor): a secret alone means plain connections
  Credentials(const bootstrap::Secret& secret_, bool tls_ = false) : secret(secret_), tls(tls_) {}
  bootstrap::Secret secret;
  bool tls;
  /// How many records (of up to 16 KiB) are encrypted under one key. RFC 8446, 5.5: 2^24.5 are the most for AES-GCM.
  std::uint64_t records_of_key = 1 << 22;
};

class Session;

class Channel {
 public:
  /// No socket.
  Channel();
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();

  /// Take a connected, non-blocking socket (a connector's may still be connecting). `from` and `self` name this end, `to` whom
  /// the connector wants to reach. Throw Error(refused) if libssl can't do what is needed.
  static Channel connector(posix::UniqueFd socket, const Credentials& credentials, bootstrap::Link link, int from, int to);
  static Channel acceptor(posix::UniqueFd socket, const Credentials& credentials, bootstrap::Link link, int self);

  /// A plain one between ends that one process made: nobody needs to prove anything.
  static Channel unproven(posix::UniqueFd socket);

  /// Moves the proof as far as the socket allows. False: it has failed, or the socket is over; refusal() or error() says why.
  bool shake();
  /// Both ends have proved themselves, and everything that this took was sent.
  bool ready() const;
  /// The other end has greeted as one who knows the protocol does (acceptor), or has answered at all (connector). It may still be
  /// anyone.
  bool greeted() const;
  /// Before it is ready: the proof has something to send, and waits for room.
  bool has_to_send() const;
  /// Why the other end was refused; empty if it wasn't.
  const std::string& refusal() const;
  /// Of a socket that ended before it was ready: its errno, 0 if the other end closed it.
  int error() const { return error_; }
  /// Who the other end says it is; believed once ready.
  int peer() const;
  /// Acceptor: whom the other end wanted to reach.
  int sought() const;
  bool is_encrypted() const { return session_ != nullptr; }

  /// Like readv(2): bytes, 0 at the end, -1 with errno (EBADMSG: what came is not what the other end sent, see damage()). As much
  /// as is there; less than there is room for means that no more is, unless ended(). Without `refill` only what this object holds
  /// already. Precondition: ready().
  ssize_t read(const iovec* parts, int count, bool refill = true);
  /// Like sendmsg(2) without SIGPIPE: bytes taken, -1 with errno. With TLS some of what was taken may still lie here: see
  /// unsent().
  ssize_t write(const iovec* parts, int count);
  /// Sends what lies here. False with errno: EAGAIN, or the way is over.
  bool flush();
  /// Bytes taken that this end's kernel hasn't.
  std::size_t unsent() const;
  /// This object holds bytes that a socket's readiness will not announce: read().
  bool holds_input() const;
  /// The way in is over: read() gives the reason once what came before is read.
  bool ended() const;
  /// What was wrong with what came; empty if nothing.
  const std::string& damage() const;

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  /// Closes the socket and forgets all keys.
  void reset();

 private:
  Channel(posix::UniqueFd socket, std::optional<bootstrap::Handshake> handshake, std::unique_ptr<Session> session);
  bool shake_plain();
  bool shake_tls();
  bool over(int error);

  posix::UniqueFd socket_;
  std::optional<bootstrap::Handshake> handshake_;  ///< plain
  std::unique_ptr<Session> session_;               ///< TLS
  int error_ = 0;
};

}  // namespace tsprun::tls
