// A channel of a communicator's own: its messages wait for those of no other communicator, so ranks may call the operations of
// two communicators in different orders. A lane can't do that, because the message at its front waits for its receive. A channel
// has no lanes: its messages travel on those of the messages with a tag (mail.h), which are taken in any order.
//
//   algorithm ─ send() ──▶ Way ─ header, seal, small payload ─▶ lane kTagged ─▶ Way ◀─ receive() ─ algorithm
//                              ◀─ header (wanted) ─────────────
//                              ─ header (coming), payload ────▶
//
// · A message is matched by sender, group and order: the k-th send of a way by the k-th receive at its other end. The seal holds
//   what both must agree on (the envelope), and is compared before the payload is asked for, or copied out of the mail.
// · The operations of a channel run one after another in the queue kTagged (Turns), each channel at its own pace.
// · Injected faults strike the payloads of the operation that asks for them. So messages to a rank that they concern are all
//   announced, however small: else a payload could come before its operation.
// · What arrives for a communicator whose operation hasn't begun is bounded by the mail's window; all else stays with its sender.
//   An operation is complete once all that it sent has left, so a channel keeps copies for one operation at most.
// · A channel costs memory at its members, and nothing on the wire until it is used; other messages travel as they did.
#pragma once

#include "core/streams/engine.h"
#include "core/streams/mail.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace tsprun::detail {

/// The channel of one communicator at one rank, used by the rank's thread. It may outlive the engine, but not move anything then.
class OwnChannel {
 public:
  /// Makes the channel of group `group` to the other ranks of `members`, world ranks to which routes lead.
  OwnChannel(Engine& engine, std::span<const int> members, std::uint64_t group);
  OwnChannel(const OwnChannel&) = delete;
  OwnChannel& operator=(const OwnChannel&) = delete;
  ~OwnChannel();

  /// Returns the way to another member. It has one lane, so what names one is ignored; it has no views, and always credit.
  Transport& way(int world);
  /// Returns the order of the channel's operations.
  Turns& turns() { return turns_; }
  /// Moves everything on that is on its way. Every step of an operation of the channel calls it first, with its own description;
  /// the ways are used within such a step alone. Throws what a step may throw.
  void advance(const OperationInfo& mine);
  /// Returns the world rank of a member that hasn't room yet for what was sent to it; -1: all has left.
  int unsent() const;

 private:
  class Way;

  Engine* engine_;
  std::shared_ptr<Mail> mail_;
  std::uint64_t group_;
  Turns turns_;
  OperationInfo mine_;  // the operation that is being stepped
  std::map<int, std::unique_ptr<Way>> ways_;
};

}  // namespace tsprun::detail
