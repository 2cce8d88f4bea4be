// One of two laboratory machines' sides of a verbs connection: memory, the transport, and the exchange of addresses through the
// laboratory's shared folder. NODE says which side this is, SHARE where the folder lies.
#pragma once

#include "transport/verbs/verbs_transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test {

/// Throws std::runtime_error with the text if the condition doesn't hold.
void require(bool condition, const std::string& what);

/// This machine's number.
int node();
/// Appends a line to the laboratory's control file ("cut 1"), and waits until it is carried out.
void weather(const std::string& line);
void run_shell(const std::string& command);

struct PairOptions {
  std::string device = {};  ///< value of --rdma; settings in the variable RDMA_SETTINGS are added
  int local_rank = 0;
  int local_ranks = 1;
  std::size_t heap_bytes = std::size_t{8} << 20;
  double timeout_s = 60;
};

class VerbsPair {
 public:
  /// Connects this machine to the other one, which makes a pair of the same name. Registers the whole heap.
  VerbsPair(const std::string& name, const PairOptions& options);
  VerbsPair(const VerbsPair&) = delete;
  VerbsPair& operator=(const VerbsPair&) = delete;
  ~VerbsPair();

  verbs::VerbsTransport& transport() { return transport_; }
  std::span<std::byte> heap(std::size_t offset, std::size_t bytes) const { return heap_.subspan(offset, bytes); }

  /// Waits until both sides are here, without using the transport under test.
  void meet();
  /// The same, but the transport makes progress meanwhile.
  void meet_moving();
  /// How long a wait polls before it sleeps, from now on. The default is an engine's that has a core of its own.
  void poll_for(std::uint64_t ns) { spin_ns_ = ns; }
  /// Makes progress until the condition holds; throws after `seconds`, which are many: the host may be busy.
  void until(const std::function<bool()>& condition, const std::string& what, double seconds = 300);
  /// Sends an empty message each way, so that both ends have opened the queue.
  void open(Stream stream);
  Ticket send(Stream stream, const Envelope& envelope, std::span<const std::byte> payload);
  Ticket receive(Stream stream, const Envelope& envelope, std::span<std::byte> into);
  void finish_send(Stream stream, Ticket ticket);
  void finish_receive(Stream stream, Ticket ticket);
  /// Sends what is left, and waits until both sides have ended.
  void close();

 private:
  std::string name_;
  std::span<std::byte> heap_;
  verbs::VerbsTransport transport_;
  std::uint64_t spin_ns_ = 1'000'000;
  int meetings_ = 0;
};

/// Stream on which scenarios send.
inline constexpr Stream kStream = Stream::kv;
inline Envelope envelope_of(std::uint32_t sequence) { return {0xfeedULL << 32 | 7, sequence, 3, Purpose::kv}; }

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Bytes that follow from the seed alone.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
bool holds(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace tsprun::detail::test
