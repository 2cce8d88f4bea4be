// Lanes between ranks that are played in one process, in virtual time (timeline.h): messages take as long as the fabric says, and
// payloads are counted, never read. Whether memory can be viewed, and when a large message begins, is as over shm and verbs: a
// small message leaves at once, a large one when its receiver has asked for it. Credits aren't
// limited. Where ranks have cores (SimWorld::chore_seconds), what a rank's core has to do for its messages is counted, and delays
// them.
//
// Folding. A job may be so regular that its ranks fall into equal units of consecutive ranks (whole nodes), each doing what the
// others do with the numbers of all units shifted (unit_grid.h): replicas, or the nodes of a replica. Then one unit is played and
// stands for all: rank r of the world is played by r modulo the unit's size. A message from played rank a to rank p of another
// unit also says what a's counterpart in another unit sends to the played rank p mod unit, which is as far away in the other
// direction. So it is delivered there, as if it came from that counterpart. Of such messages only the tags are compared:
// signatures of messages name both ranks, and chunks of ranks in different places may differ by an element.
#pragma once

#include "transport/chores.h"
#include "transport/sim/fabric.h"
#include "transport/sim/message_log.h"
#include "transport/sim/unit_grid.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tsprun::detail::sim {

class SimTransport;

/// All played ranks.
struct SimWorld {
  Timeline& timeline;
  Fabric& fabric;
  int ranks = 1;                                            ///< of the world
  UnitGrid grid;                                            ///< units that make up the world, of which the first is played
  int ranks_per_node = 1;                                   ///< ranks of a node can view each other's memory
  std::function<void(int, Stream)> wake;                    ///< told of each played rank for which something came that it
                                                            ///< had found missing, and on which stream
  std::function<void(int, int)> moves{};                    ///< told of each played rank that begins (+1) or ends (-1) to send or
                                                            ///< receive bytes; empty: nobody is
  std::function<double(const Chores&)> chore_seconds{};     ///< if set, ranks have cores, which do chores: what a rank sends or
                                                            ///< gives back leaves it once its chores so far are done
  std::vector<std::unique_ptr<SimTransport>> transports{};  ///< by played rank
  std::vector<int> opposite{};                              ///< by unit, UnitGrid::opposite()
  std::uint64_t messages = 0;                               ///< sent so far

  /// Makes the transports of all played ranks. The world must not move after that.
  void make_transports();
};

/// The lanes of one played rank, whose peers are numbered by their ranks in the world.
class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld& world, int rank) : world_(world), rank_(rank) {}

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  std::size_t plain_limit() const override { return kPlainBytes; }
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  bool can_send_from(std::span<const std::byte>) const override { return true; }
  bool can_receive_into(std::span<const std::byte>) const override { return true; }
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  bool can_view(int peer) const override { return peer / world_.ranks_per_node == rank_ / world_.ranks_per_node; }
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

  /// Returns a rank of the world that has sent this one a message which it hasn't asked for; -1: there is none.
  int unread() const;
  /// Returns the traffic of all lanes so far, counted as Endpoint::counters() does.
  const TrafficCounters& counters() const { return counters_; }
  /// Returns what this rank's core has to do for communication; whoever lets it be done sets it back.
  Chores& chores() { return chores_; }
  /// Tells `log`, which is borrowed, of this rank's messages from now on.
  void observe(MessageLog& log) { log_ = &log; }

 private:
  /// Largest payload that leaves before its receiver asks for it, as over shm.
  static constexpr std::size_t kPlainBytes = std::size_t{8} * 1024;

  struct Message {
    Envelope sent;
    Envelope expected;
    const std::byte* payload = nullptr;
    std::size_t bytes = 0;    // as sent
    std::size_t expects = 0;  // as the receiver expects
    bool is_sent = false;
    bool is_asked_for = false;
    bool on_its_way = false;
    bool here = false;
    bool viewed = false;
    bool released = false;
  };
  /// One direction between two ranks on one stream; the receiver's transport has it.
  struct Lane final : Handler {
    static constexpr Ticket kNobody = ~Ticket{0};
    // What receivers look at most often comes first.
    Ticket missing = 1;        // all messages before it are here
    Ticket awaited = kNobody;  // the first one that the receiver found missing since it was woken
    Ticket first = 1;          // of messages.front(); all before it are over
    std::deque<Message> messages;
    Ticket sent = 0;
    Ticket asked = 0;
    SimTransport* receiver = nullptr;
    Way way;
    int sender = -1;  // played rank to which acknowledgements go
    Stream stream{};
    bool exact = true;          // the sender isn't a counterpart
    bool sender_waits = false;  // since it found a message that isn't over
    void happen(std::uint64_t what) override;
    Message* find(Ticket ticket) { return ticket < first ? nullptr : &messages[ticket - first]; }
    Message& at(Ticket ticket);
    bool fits(const Message& message) const;
    void go(Ticket ticket, double after);
    void leave(Ticket ticket);
    void give_back(Ticket ticket);
    void tell(const Message& message, int change) const;
    void drop_finished();
  };

  Lane& incoming(int from, Stream stream);
  std::unique_ptr<Lane> make_lane(int from, Stream stream);
  Lane& outgoing(int to, Stream stream);
  double chore_seconds() const { return world_.chore_seconds ? world_.chore_seconds(chores_) : 0; }
  Ticket ask(LaneId lane, const Envelope& envelope, std::size_t bytes, bool view);

  SimWorld& world_;
  int rank_;
  /// Lanes of one stream, from ranks that were used.
  struct Lanes {
    std::vector<std::unique_ptr<Lane>> played;                    // by rank; empty: none was used
    std::unordered_map<int, std::unique_ptr<Lane>> counterparts;  // of played ranks, by their numbers in the world
  };
  std::array<Lanes, kQueues> incoming_;  // by stream
  TrafficCounters counters_;
  Chores chores_;
  MessageLog* log_ = nullptr;  // null: there is none
};

}  // namespace tsprun::detail::sim
