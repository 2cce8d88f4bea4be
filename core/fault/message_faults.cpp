// Counts the messages that operations prescribe, and decides by number or by a seeded hash which of them are hit.
#include "core/fault/message_faults.h"

#include "transport/checksum.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

std::uint64_t hash_of_message(const fault::Spec& spec, std::uint64_t message) {
  const std::uint64_t key[4] = {spec.seed, static_cast<std::uint64_t>(spec.from), static_cast<std::uint64_t>(spec.to), message};
  return checksum(std::as_bytes(std::span(key)));
}

/// Maps 64 random bits to [0, 1).
double fraction(std::uint64_t drawn) { return static_cast<double>(drawn >> 11) * 0x1p-53; }

/// Returns true for faults of single messages, not of ranks or connections.
bool concerns_messages(const fault::Spec& spec) {
  return !spec.strikes_rank() && spec.kind != fault::Kind::disconnect && spec.kind != fault::Kind::slow;
}

}  // namespace

bool prescribes_message(const OperationInfo& info, std::span<const int> members, int from, int to) {
  const auto in_group = [&](int rank) { return std::ranges::find(members, rank) != members.end(); };
  switch (info.op) {
    case Op::send: return false;  // the receiver's operation is a recv or send_recv
    case Op::recv: return info.root == from;
    case Op::send_recv: return info.source == from;
    case Op::broadcast:
    case Op::scatter: return info.root == from && in_group(to);
    case Op::reduce:
    case Op::gather: return info.root == to && in_group(from);
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::all_to_all: return in_group(from) && in_group(to);
    case Op::barrier: break;
  }
  return false;
}

MessageFaults::MessageFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank) : rank_(rank) {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const fault::Spec& spec = faults[i];
    if (concerns_messages(spec)) concerned_.insert(spec.to);
    if (spec.strikes_rank() || spec.to != rank) continue;
    const bool once = spec.nth != 0 || spec.kind == fault::Kind::disconnect;
    if (once && (struck >> i & 1) != 0) continue;
    faults_.push_back({.spec = spec, .number = i});
  }
}

std::vector<std::size_t> MessageFaults::at_step(std::uint64_t step) {
  std::vector<std::size_t> cut;
  for (const Fault& fault : faults_) {
    if (fault.spec.kind != fault::Kind::disconnect || fault.spec.step != step) continue;
    strikes_.cut(fault.spec.from, fmt::format("--fault {}", fault.spec.text));
    cut.push_back(fault.number);
  }
  return cut;
}

void MessageFaults::at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::span<const int> members) {
  for (Fault& fault : faults_) {
    if (!concerns_messages(fault.spec) || !prescribes_message(info, members, fault.spec.from, rank_)) continue;
    const std::uint64_t message = ++fault.messages;
    const std::uint64_t drawn = hash_of_message(fault.spec, message);
    const bool due = fault.spec.nth != 0 ? fault.spec.nth == message : fraction(drawn) < fault.spec.probability;
    if (!due) continue;
    due_[{stream, number}].push_back({.kind = fault.spec.kind,
                                      .fault = fault.number,
                                      .from = info.relayed ? fault::Strike::kAnyRank : fault.spec.from,
                                      // Hashes again, because selection already favoured small hashes.
                                      .draw = checksum(std::as_bytes(std::span(&drawn, 1))),
                                      .late_ns = static_cast<std::uint64_t>(fault.spec.milliseconds * 1e6)});
  }
}

void MessageFaults::at_begin(Stream stream, std::uint64_t number) {
  const auto due = due_.find({stream, number});
  if (due == due_.end()) return;
  for (const fault::Strike& strike : due->second) strikes_.arm(stream, strike);
  due_.erase(due);
}

void MessageFaults::at_end(Stream stream, std::uint64_t number) {
  strikes_.disarm(stream);
  due_.erase({stream, number});
}

}  // namespace tsprun::detail
