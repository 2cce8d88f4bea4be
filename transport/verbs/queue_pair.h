// One reliable connection (RC queue pair) to one peer: its states, the room in its send queue, its posted receives.
//
//   made ── INIT ── receives posted ── connect(): RTR, RTS ── in use ── a failed completion or stop(): ERROR, the rest is flushed
//
// Work requests are counted from 1. They complete in order, so a signalled completion also stands for all requests before it:
// every 16th request is signalled, and those for whose end the caller waits. Receives carry no memory: they only take the
// immediates of the peer's WRITE_WITH_IMMs. The lanes' credits bound the number of those, so a receive is always posted; those of
// a queue from its opening on.
#pragma once

#include "transport/verbs/device.h"
#include "transport/verbs/library.h"
#include "transport/verbs/wire.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tsprun::detail::verbs {

/// Work requests in the receive and send queue. The peer's unanswered immediates are bounded by the probe, a queue's opening and
/// four words of each other queue pair, three of its joining and one of its loss (kFirstReceives, with what isn't posted again
/// yet), and by 16 entries or data, 16 grants and 16 credits for each queue that is open. One that takes over from lost ways
/// (losing.cpp) may have as many data more for each message as ways were lost: up to three there is room for them.
inline constexpr std::uint32_t kFirstReceives = 64;
inline constexpr std::uint32_t kQueueReceives = 3 * kSlots;
inline constexpr std::uint32_t kReceives = kFirstReceives + kQueues * kQueueReceives;
inline constexpr std::uint32_t kSends = 256;

/// Lengths of a queue pair's queues, for which drivers pin memory.
struct QueueLengths {
  std::uint32_t sends;
  std::uint32_t receives;
  std::uint32_t posted;        ///< receives that are posted from the start
  std::uint32_t inline_bytes;  ///< payload that a request shall hold, if the device can

  /// Returns how many completions may wait to be polled.
  constexpr int completions() const { return static_cast<int>(sends + receives); }
  /// Returns the bytes that mlx5 pins for the queue pair (rdma-core, mlx5_calc_wq_size()) and for its completions, of 64 bytes:
  /// in whole pages a send queue whose requests have 192 bytes of headers and then one segment of 16 bytes or the inline data and
  /// 4 bytes, in units of 64, and a receive queue of segments alone, both in powers of two.
  constexpr std::size_t pinned_bytes() const {
    constexpr std::size_t kUnit = 64;
    constexpr std::size_t kHeaders = 192;
    constexpr std::size_t kSegment = 16;
    constexpr std::size_t kPage = 4096;
    const auto rounded = [](std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; };
    const std::size_t request = rounded(kHeaders + rounded(4 + inline_bytes, kSegment), kUnit);
    const std::size_t requests = std::bit_ceil(sends * request) + std::bit_ceil(std::size_t{receives}) * kSegment;
    return rounded(requests, kPage) + completion_bytes();
  }
  constexpr std::size_t completion_bytes() const { return std::size_t{64} * (sends + receives); }
};
/// Lengths of one that carries messages. Inline are a header and some payload, which the NIC needn't fetch.
inline constexpr QueueLengths kWhole{.sends = kSends, .receives = kReceives, .posted = kFirstReceives, .inline_bytes = 220};
/// Lengths of one that carries the probe, questions to a silent peer one at a time, and twice the news that makes the two ends
/// use a whole one.
inline constexpr QueueLengths kSmall{.sends = 4, .receives = 4, .posted = 4, .inline_bytes = 0};

/// Lengths of one that carries payloads alone, beside that which carries messages (joining.cpp), until that is lost.
inline constexpr QueueLengths kPayloads{.sends = kSends, .receives = kReceives, .posted = kReceives, .inline_bytes = 220};

/// Retries after which the NIC gives a peer up.
struct RetryLimits {
  std::uint8_t timeout;      ///< one try lasts 4.096 µs · 2^timeout
  std::uint8_t retry_count;  ///< tries after the first

  /// Returns what the settings say. Where they don't: six retries, not seven, which for soft-RoCE means for ever, and as long a
  /// timeout as lets all tries last about half of the deadline, so that a link which is gone for that long costs nobody the job.
  /// Adapters may take up to four times as long as they are told; beyond the deadline waits end by themselves.
  static RetryLimits of(const Settings& settings, std::uint64_t deadline_ns);
  /// Returns "after 7 tries of 2.15 s, 15 s in all (--rdma retries=6,timeout=19)".
  std::string text() const;
};

/// A queue pair and its counters. The device and protection domain must outlive it.
class QueuePair {
 public:
  /// Makes the queue pair and posts its first receives. `tag` comes back in the upper bits of wr_id. `first_packet`: the packet
  /// sequence number (PSN) with which this end begins. Throws Error(refused |
  /// out_of_memory) with the call that failed.
  QueuePair(ibv_pd* pd, ibv_cq* completions, const ChosenPort& port, const QueueLengths& lengths, std::uint32_t tag,
            std::uint32_t first_packet);

  std::uint32_t number() const { return pair_->qp_num; }

  /// Moves the queue pair to RTR and RTS, towards the peer's queue pair of this number. At RTR the kernel resolves the peer's
  /// Ethernet address, which takes a second if the peer doesn't answer. Returns false if the address wasn't found and this isn't
  /// the last try. Throws Error(refused) for any other failure.
  bool connect(const Address& peer, std::uint32_t peer_number, const ChosenPort& port, RetryLimits limits, bool last_try);

  /// Returns how many work requests can be posted now.
  std::uint64_t room() const { return sends_ - (posted_ - completed_); }
  /// Return the newest work request that was posted, and that is known to be completed.
  std::uint64_t posted() const { return posted_; }
  std::uint64_t done() const { return completed_; }
  bool is_completed(std::uint64_t request) const { return request <= completed_; }
  std::uint64_t last_signalled() const { return signalled_; }

  /// Registered local memory and its key.
  struct Source {
    const void* data;
    std::size_t bytes;
    std::uint32_t key;
  };
  /// Place in the peer's memory and its key.
  struct Target {
    std::uint64_t address;
    std::uint32_t key;
  };
  /// Posts a write, with an immediate if given; small sources travel inline. Returns its number, or 0 if the call failed: see
  /// post_error(). Precondition: room() > 0.
  std::uint64_t write(const Source& from, const Target& to, std::optional<Immediate> immediate, bool signalled);
  const std::string& post_error() const { return post_error_; }

  /// Notes that a completion of this request came.
  void completed(std::uint64_t request) { completed_ = request; }
  /// Notes that a receive was consumed; receives are posted again in batches. Returns false if that failed: see post_error().
  bool received();
  /// Posts the receives of one more queue. Returns false if that failed: see post_error().
  bool expect_queue() { return post_receives(kQueueReceives); }

  /// Moves the queue pair to ERROR, in which it neither sends nor answers: the peer's next request fails after its retries.
  void stop();
  /// Destroys the queue pair: from then on nothing that the peer has sent by it arrives. Only counters remain. Returns false if
  /// that failed.
  bool close() {
    stop();
    return !pair_ || library().destroy_qp(pair_.release()) == 0;
  }

  /// Returns the wr_id of a request; the next two take it apart: its upper 24 bits are the tag, the others the request's number,
  /// which is 0 for receives.
  static constexpr std::uint64_t wr_id_of(std::uint32_t tag, std::uint64_t number) { return std::uint64_t{tag} << 40 | number; }
  static constexpr std::uint64_t number_of(std::uint64_t wr_id) { return wr_id & ((std::uint64_t{1} << 40) - 1); }
  static constexpr std::uint32_t tag_of(std::uint64_t wr_id) { return static_cast<std::uint32_t>(wr_id >> 40); }

 private:
  struct Destroy {
    void operator()(ibv_qp* pair) const { library().destroy_qp(pair); }
  };
  void initialise(const ChosenPort& port);
  bool post_receives(std::uint32_t count);

  std::unique_ptr<ibv_qp, Destroy> pair_;
  std::uint64_t tag_;
  std::uint64_t sends_;  // length of the send queue
  std::uint32_t first_packet_;
  std::uint32_t inline_bytes_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t signalled_ = 0;
  std::uint32_t receives_owed_ = 0;
  std::string post_error_;
};

}  // namespace tsprun::detail::verbs
