// The TLS side of a channel, without a socket: libssl between two buffers of ciphertext. Only channel.cpp uses it; channel.h
// describes the protocol.
#pragma once

#include "transport/tls/channel.h"

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::tls {

/// One TLS connection, as seen by libssl. Not movable: libssl keeps a pointer to it.
class Session {
 public:
  /// Makes one end: `from` names it, `to` the end that a connector wants to reach. Throws Error(refused) if libssl fails.
  Session(const Credentials& credentials, bootstrap::ConnectionUse use, bool connector, int from, int to);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() = default;

  /// Result of a step: complete, no more without further input, or failed for good.
  enum class Step : std::uint8_t { done, wants_input, failed };
  /// Moves the handshake as far as the input allows.
  Step shake();
  /// Decrypts into `room`, at most one record; sets `bytes` to the number of bytes decrypted.
  Step read(std::span<std::byte> room, std::size_t& bytes);
  /// Encrypts into the output, and updates the key when it is due. Returns false if libssl failed.
  bool write(std::span<const std::byte> bytes);

  /// Returns the buffer for ciphertext from the socket; tell came() how much was read into it. Precondition: no input is left.
  std::span<std::byte> room_for_input();
  void came(std::size_t bytes);
  bool has_input() const { return begin_ != end_; }
  /// Returns true if decrypted bytes or ciphertext are left to read.
  bool holds_input() const { return has_input() || ::SSL_pending(ssl_.get()) != 0; }

  /// Returns the ciphertext to be sent; tell sent() how much the socket took.
  std::span<const std::byte> output() const { return std::span(out_).subspan(out_sent_); }
  void sent(std::size_t bytes);

  bool greeted() const { return greeted_; }
  int peer() const { return connector_ ? mine_.to : theirs_.from; }
  int sought() const { return theirs_.to; }
  const std::string& refusal() const { return refusal_; }
  const std::string& damage() const { return damage_; }
  bool ready() const { return ready_; }

  int end_error = 0;    ///< errno with which the socket's input ended; 0: the other end closed it
  bool ended = false;   ///< the socket's input has ended
  int write_error = 0;  ///< errno with which the socket's output ended; 0: it hasn't

 private:
  static int take(BIO* bio, char* data, int room);
  static int give(BIO* bio, const char* data, int bytes);
  static long control(BIO* bio, int command, long number, void* pointer);
  static BIO_METHOD* method();
  static SSL_CTX* context();
  static int offer(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* id_bytes, SSL_SESSION** session);
  static int find(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session);
  SSL_SESSION* key_of(const bootstrap::Greeting& greeting);
  bool hear_first_bytes();
  Step fail();

  bootstrap::Secret secret_;
  bool connector_;
  bootstrap::Greeting mine_{};
  bootstrap::Greeting theirs_{};
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  std::vector<std::byte> in_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<std::byte> out_;
  std::size_t out_sent_ = 0;
  std::uint64_t records_of_key_;
  std::uint64_t records_ = 0;  ///< records encrypted under the present key
  bool first_bytes_heard_ = false;
  bool greeted_ = false;
  bool agreed_ = false;  ///< libssl's handshake is complete
  bool done_ = false;    ///< so is the rest of the proof (the welcome byte)
  bool ready_ = false;   ///< and all of it was sent
  std::string refusal_;
  std::string damage_;
};

}  // namespace tsprun::detail::tls
