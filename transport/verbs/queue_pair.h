// One reliable connection (RC queue pair) to one peer: its states, its send queue's room, its posted receives.
//
//   made ── INIT ── receives posted ── connect(): RTR, RTS ── probe ── in use ── any failed completion: ERROR, all else is
//   flushed
//
// Work requests are counted from 1. They complete in order, so one signalled completion also stands for all before it: every 16th
// is signalled, and those whose end somebody waits for. Receives carry no memory: they only take the immediates of the peer's
// WRITE_WITH_IMMs, whose number the lanes' credits bound, so that the peer never finds none posted.
#pragma once

#include "transport/verbs/device.h"
#include "transport/verbs/wire.h"

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tsprun::verbs {

/// What bounds the peer's unanswered immediates: per stream 16 entries or data, 16 grants, 16 credits; and the probe.
inline constexpr std::uint32_t kReceives = 256;
inline constexpr std::uint32_t kSends = 256;
static_assert(kReceives >= kStreams * 3 * kSlots + 32, "a receive less than immediates in flight is an RNR");

/// How long the NIC tries before it gives a peer up.
struct Patience {
  std::uint8_t timeout;      ///< one try lasts 4.096 µs · 2^timeout
  std::uint8_t retry_count;  ///< tries after the first

  /// All tries together last about a quarter of the deadline: adapters may take up to four times as long as they are told.
  /// Six retries, not seven: soft-RoCE takes seven for ever.
  static Patience within(std::uint64_t deadline_ns);
};

class QueuePair {
 public:
  /// Throws Error(refused, out_of_memory) in the words of the call that failed. `tag` comes back in wr_id's upper bits.
  QueuePair(ibv_pd* pd, ibv_cq* completions, const ChosenPort& port, std::uint32_t tag);

  std::uint32_t number() const { return pair_->qp_num; }
  std::uint32_t first_packet() const { return first_packet_; }

  /// To RTR, where the kernel resolves the peer's Ethernet address, which takes a second if the peer doesn't answer; then to RTS.
  /// False if it wasn't found and this isn't the last try. Throws Error(refused).
  bool connect(const Address& peer, const ChosenPort& port, Patience patience, bool last_try);

  /// Work requests that can be posted now.
  std::uint64_t room() const { return kSends - (posted_ - completed_); }
  std::uint64_t posted() const { return posted_; }
  std::uint64_t done() const { return completed_; }
  bool is_completed(std::uint64_t request) const { return request <= completed_; }
  std::uint64_t last_signalled() const { return signalled_; }

  struct Source {
    const void* data;
    std::size_t bytes;
    std::uint32_t key;
  };
  struct Target {
    std::uint64_t address;
    std::uint32_t key;
  };
  /// Posts a write, with an immediate if given; small sources travel inline. Returns its number; 0 if the call failed: see
  /// post_error(). Precondition: room() > 0.
  std::uint64_t write(const Source& from, const Target& to, std::optional<Immediate> immediate, bool signalled);
  const std::string& post_error() const { return post_error_; }

  void completed(std::uint64_t request) { completed_ = request; }
  /// A receive was consumed; they are posted again in batches. False if that failed: see post_error().
  bool received();

  /// wr_id: the upper 24 bits are the tag, the rest the request's number; 0 for receives.
  static constexpr std::uint64_t number_of(std::uint64_t wr_id) { return wr_id & ((std::uint64_t{1} << 40) - 1); }
  static constexpr std::uint32_t tag_of(std::uint64_t wr_id) { return static_cast<std::uint32_t>(wr_id >> 40); }

 private:
  struct Destroy {
    void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
  };
  void initialise(const ChosenPort& port);
  bool post_receives(std::uint32_t count);

  std::unique_ptr<ibv_qp, Destroy> pair_;
  std::uint64_t tag_;
  std::uint32_t first_packet_;
  std::uint32_t inline_bytes_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t signalled_ = 0;
  std::uint32_t receives_owed_ = 0;
  std::string post_error_;
};

}  // namespace tsprun::verbs
