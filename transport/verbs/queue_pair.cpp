// Takes a queue pair through its states, and posts its writes and receives.
#include "transport/verbs/queue_pair.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tsprun::detail::verbs {

namespace {

constexpr std::uint64_t kSignalEvery = 16;
constexpr std::uint32_t kReceiveBatch = 16;

/// Changes the state of a queue pair. Returns false if the kernel couldn't resolve the peer's address yet and `patient` is set.
/// Throws Error(refused) for any other failure.
bool modify(ibv_qp* pair, ibv_qp_attr& attributes, int mask, const char* state, const std::string& peer, bool patient = false) {
  const int error = library().modify_qp(pair, &attributes, mask);
  if (error == ETIMEDOUT && patient) return false;
  if (error != 0) {
    throw system_error(
        Cause::refused,
        fmt::format("verbs: queue pair {} can't go to {} (peer: {})", pair->qp_num, state, peer.empty() ? "-" : peer), error);
  }
  return true;
}

/// Returns true if packets to the peer need a global routing header: over Ethernet, in another subnet of InfiniBand, or where a
/// port asks for it.
bool needs_global_header(const Address& peer, const ChosenPort& port) {
  constexpr std::size_t kPrefixBytes = 8;
  return port.port.ethernet || port.port.grh_required || peer.grh_required != 0 ||
         std::memcmp(port.gid.bytes.data(), peer.gid, kPrefixBytes) != 0;
}

}  // namespace

RetryLimits RetryLimits::of(const Settings& settings, std::uint64_t deadline_ns) {
  constexpr std::uint8_t kRetries = 6;
  constexpr std::uint8_t kShortest = 10;  // 4 ms: with less, a busy peer looks dead
  constexpr double kShare = 0.6;          // timeouts double: what fits is 0.3 to 0.6 of the deadline
  const auto retries = settings.retries < 0 ? kRetries : static_cast<std::uint8_t>(settings.retries);
  if (settings.timeout > 0) return {static_cast<std::uint8_t>(settings.timeout), retries};
  const double each_ns = static_cast<double>(deadline_ns) * kShare / (retries + 1);
  std::uint8_t timeout = kShortest;
  while (timeout < 31 && 4096.0 * static_cast<double>(std::uint64_t{2} << timeout) <= each_ns) ++timeout;
  return {timeout, retries};
}

std::string RetryLimits::text() const {
  const double each_s = 4096e-9 * static_cast<double>(std::uint64_t{1} << timeout);
  return fmt::format("after {} tries of {:.3g} s, {:.3g} s in all (--rdma retries={},timeout={})", retry_count + 1, each_s,
                     each_s * (retry_count + 1), retry_count, timeout);
}

QueuePair::QueuePair(ibv_pd* pd, ibv_cq* completions, const ChosenPort& port, const QueueLengths& lengths, std::uint32_t tag,
                     std::uint32_t first_packet)
    : tag_(std::uint64_t{tag} << 40), sends_(lengths.sends), first_packet_(first_packet) {
  int error = 0;
  // Devices that can't have so much inline data are asked for less.
  for (const std::uint32_t wanted : {lengths.inline_bytes, std::min<std::uint32_t>(lengths.inline_bytes, 64), std::uint32_t{0}}) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = completions;
    attributes.cap.max_send_wr = lengths.sends;
    attributes.cap.max_recv_wr = lengths.receives;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = wanted;
    pair_.reset(library().create_qp(pd, &attributes));
    error = errno;
    if (pair_) {
      inline_bytes_ = attributes.cap.max_inline_data;  // some have room for more than they are asked for
      break;
    }
  }
  if (!pair_) {
    throw system_error(error == ENOMEM ? Cause::out_of_memory : Cause::refused,
                       fmt::format("verbs: no queue pair on {}", port.text()), error);
  }
  initialise(port);
  if (!post_receives(lengths.posted)) throw Error(Cause::refused, fmt::format("verbs: {} on {}", post_error_, port.text()));
}

void QueuePair::initialise(const ChosenPort& port) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<std::uint8_t>(port.port.number);
  attributes.pkey_index = static_cast<std::uint16_t>(port.pkey_index);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  modify(pair_.get(), attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT", {});
}

bool QueuePair::connect(const Address& peer, std::uint32_t peer_number, const ChosenPort& port, RetryLimits limits,
                        bool last_try) {
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = static_cast<ibv_mtu>(std::min(port.port.mtu, peer.mtu));
  ready.dest_qp_num = peer_number;
  ready.rq_psn = peer.first_packet;
  ready.max_dest_rd_atomic = 0;
  ready.min_rnr_timer = 12;
  ready.ah_attr.port_num = static_cast<std::uint8_t>(port.port.number);
  ready.ah_attr.dlid = peer.lid;
  const auto setting = [](int given, int absent) { return static_cast<std::uint8_t>(given < 0 ? absent : given); };
  ready.ah_attr.sl = setting(port.settings.sl, 0);
  if (needs_global_header(peer, port)) {
    ready.ah_attr.is_global = 1;
    std::memcpy(ready.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
    ready.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port.gid.index);
    ready.ah_attr.grh.hop_limit = setting(port.settings.hops, 64);
    ready.ah_attr.grh.traffic_class = setting(port.settings.tc, 0);
  }
  const int ready_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (!modify(pair_.get(), ready, ready_mask, "RTR", peer.port, !last_try)) return false;

  ibv_qp_attr sending{};
  sending.qp_state = IBV_QPS_RTS;
  sending.timeout = limits.timeout;
  sending.retry_cnt = limits.retry_count;
  sending.rnr_retry = 0;  // credits rule RNR errors out; if one comes, it must be visible
  sending.sq_psn = first_packet_;
  sending.max_rd_atomic = 0;
  modify(pair_.get(), sending,
         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, "RTS",
         peer.port);
  return true;
}

std::uint64_t QueuePair::write(const Source& from, const Target& to, std::optional<Immediate> immediate, bool signalled) {
  assert(room() > 0);
  const std::uint64_t number = posted_ + 1;
  signalled = signalled || number - signalled_ >= kSignalEvery;
  ibv_sge piece{reinterpret_cast<std::uint64_t>(from.data), static_cast<std::uint32_t>(from.bytes), from.key};
  ibv_send_wr request{};
  request.wr_id = tag_ | number;
  request.sg_list = &piece;
  request.num_sge = from.bytes == 0 ? 0 : 1;
  request.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (immediate) request.imm_data = htonl(immediate->encode());
  if (signalled) request.send_flags |= IBV_SEND_SIGNALED;
  if (from.bytes != 0 && from.bytes <= inline_bytes_) request.send_flags |= IBV_SEND_INLINE;
  request.wr.rdma.remote_addr = to.address;
  request.wr.rdma.rkey = to.key;
  ibv_send_wr* failed = nullptr;
  if (const int error = ibv_post_send(pair_.get(), &request, &failed); error != 0) {
    post_error_ = fmt::format("ibv_post_send on queue pair {}: {}", pair_->qp_num, std::strerror(error));
    return 0;
  }
  posted_ = number;
  if (signalled) signalled_ = number;
  return number;
}

void QueuePair::stop() {
  if (!pair_) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  library().modify_qp(pair_.get(), &attributes, IBV_QP_STATE);  // if it can't, the device is gone, and answers nobody either
}

bool QueuePair::received() {
  if (++receives_owed_ < kReceiveBatch) return true;
  const std::uint32_t owed = std::exchange(receives_owed_, 0);
  return post_receives(owed);
}

bool QueuePair::post_receives(std::uint32_t count) {
  std::array<ibv_recv_wr, kReceiveBatch> requests{};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].wr_id = tag_;
    requests[i].next = i + 1 < requests.size() ? &requests[i + 1] : nullptr;
  }
  static_assert(kFirstReceives >= kMostQueues + 1 + 4 * (kMostWays - 1) + kReceiveBatch,
                "a receive less than immediates in flight is an RNR");
  while (count > 0) {
    const std::uint32_t batch = std::min(count, kReceiveBatch);
    count -= batch;
    requests[batch - 1].next = nullptr;  // of a last batch, which alone may be shorter
    ibv_recv_wr* failed = nullptr;
    if (const int error = ibv_post_recv(pair_.get(), requests.data(), &failed); error != 0) {
      post_error_ = fmt::format("ibv_post_recv on queue pair {}: {}", pair_->qp_num, std::strerror(error));
      return false;
    }
  }
  return true;
}

}  // namespace tsprun::detail::verbs
