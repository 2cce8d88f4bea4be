// One end of a socket whose other end must know the job's secret: first the proof, then the connection's bytes. There are two
// ways, and both ends must be configured for the same one:
//
//   plain   the proof of handshake.h, then the bytes unprotected. Costs nothing per byte, but someone who can change packets
//           can change the bytes. For sockets within a machine.
//   TLS     TLS 1.3 (RFC 8446) by OpenSSL's libssl with an external pre-shared key and an ephemeral X25519 exchange, no
//           certificates, no tickets, no early data. Every byte is encrypted and authenticated, and recorded traffic can't be
//           decrypted later by someone who learns the secret.
//
// Each connection has its own pre-shared key: HKDF-SHA-256 of the secret, with the nonce of the connector's greeting as salt and
// the whole greeting as info. The greeting (who speaks, to whom, what for) is the key's identity, so that it can't be changed on
// the way:
//
//   connector                                        acceptor
//      │  ClientHello {greeting, X25519, binder}  ──▶  │   checks the greeting, then the binder, before it answers
//      │  ◀── ServerHello {X25519}, Finished           │
//      │  Finished                                ──▶  │
//      │  ◀── one byte, encrypted: welcome             │
//
// No call blocks. With TLS both directions go through buffers of this class, so that one system call moves several records.
#pragma once

#include "transport/bootstrap/handshake.h"
#include "transport/uninherited_fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

struct iovec;

namespace tsprun::detail::tls {

/// The job's secret, and how connections protect their bytes.
struct Credentials {
  // NOLINTNEXTLINE(google-explicit-constructor): a secret alone means plain connections
  Credentials(const bootstrap::Secret& secret_, bool tls_ = false) : secret(secret_), tls(tls_) {}
  bootstrap::Secret secret;
  bool tls;
  /// Records (of up to 16 KiB) that are encrypted under one key, before the key is updated. RFC 8446, 5.5, allows 2^24.5 for
  /// AES-GCM.
  std::uint64_t records_of_key = 1 << 22;
};

class Session;

/// A socket with its proof and, with TLS, its encryption. Movable; one thread at a time.
class Channel {
 public:
  /// Makes a channel without a socket.
  Channel();
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();

  /// Make a channel that dialed (connector) or accepted (acceptor) a connected, non-blocking socket; a connector's may still be
  /// connecting. `from` and `self` name this end, `to` the end that the connector wants to reach. Throw Error(refused) if
  /// libssl can't do what is needed.
  static Channel connector(posix::UniqueFd socket, const Credentials& credentials, bootstrap::ConnectionUse use, int from,
                           int to);
  static Channel acceptor(posix::UniqueFd socket, const Credentials& credentials, bootstrap::ConnectionUse use, int self);

  /// Makes a plain channel without proof, for a socket pair whose ends one process made.
  static Channel unproven(posix::UniqueFd socket);

  /// Moves the proof as far as the socket allows. Returns false if it has failed or the socket has ended; refusal() or error()
  /// gives the reason.
  bool shake();
  /// Returns true once both ends have proved that they know the secret, and every byte of the proof was sent.
  bool ready() const;
  /// Returns true once the other end has sent a valid greeting (acceptor) or any answer (connector). It hasn't proved anything
  /// by that.
  bool greeted() const;
  /// Returns true if the proof has bytes to send and waits until the socket is writable. For use before ready().
  bool has_to_send() const;
  /// Returns why the other end was refused; empty if it wasn't.
  const std::string& refusal() const;
  /// Returns the errno with which the socket ended before ready(); 0 if the other end closed it.
  int error() const { return error_; }
  /// Returns the name that the other end gives itself (`from` of its greeting). Proved once ready().
  int peer() const;
  /// Returns the name that the other end wanted to reach. Acceptor only.
  int sought() const;

  /// Reads like readv(2): returns the bytes read, 0 at the end, or -1 with errno (EBADMSG: the bytes that came aren't those
  /// that the other end sent, see damage()). Reads all that is there: fewer bytes than fit mean that no more are there, unless
  /// ended(). Without `refill` it reads only bytes that this object holds already. Precondition: ready().
  ssize_t read(const iovec* parts, int count, bool refill = true);
  /// Writes like sendmsg(2), without SIGPIPE: returns the bytes taken, or -1 with errno. With TLS some of the bytes taken may
  /// still be in this object: see unsent().
  ssize_t write(const iovec* parts, int count);
  /// Sends bytes that were taken but not sent yet. Returns false with errno: EAGAIN, or the error that ended the way out.
  bool flush();
  /// Returns the bytes (of ciphertext) that this object has taken and the kernel hasn't.
  std::size_t unsent() const;
  /// Returns true if this object holds input that the socket's readiness won't announce: call read().
  bool holds_input() const;
  /// Returns true if no more input comes from the socket. read() returns the reason after what came before it was read.
  bool ended() const;
  /// Returns what was wrong with the bytes that came; empty if nothing was.
  const std::string& damage() const;

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  /// Closes the socket and discards all keys.
  void reset();

 private:
  Channel(posix::UniqueFd socket, std::optional<bootstrap::Handshake> handshake, std::unique_ptr<Session> session);
  bool shake_plain();
  bool shake_tls();
  bool over(int error);

  posix::UninheritedFd socket_;
  std::optional<bootstrap::Handshake> handshake_;  ///< plain
  std::unique_ptr<Session> session_;               ///< TLS
  int error_ = 0;
};

}  // namespace tsprun::detail::tls
