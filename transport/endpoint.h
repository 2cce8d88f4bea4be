// Connects the two ends of a transport: an Endpoint is a transport (transport.h) that still has to be connected. shm/, verbs/ and
// tcp/ each implement one; core/links.h calls it in this order:
//
//   address()      the blob that a peer needs, carried to it by the job's store
//   can_reach()    whether the peer with this blob can be reached
//   connect()      begins to connect
//   linked()       until it is true for every peer; where an end must know that all others are as far, they tell each other then
//   connected()    until it is true for every peer: then lanes may be used
#pragma once

#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// Answer to the question whether a transport can reach a peer, with the reason, as `doctor` and the report print it.
struct Reach {
  bool possible;
  std::string why;
};

/// Bytes of a slab. Memory is registered slab by slab, counted from the start of the heap; one key covers one slab.
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 20;

/// End of a transport on this rank, with its memory and its traffic. An end that needs no address (Factory::to_tell is empty)
/// leaves the functions that connect as they are here.
class Endpoint : public Transport {
 public:
  /// Returns the address blob that `peer` needs to connect to this rank. Only the same kind of transport can read it. Its first
  /// bytes (Factory::own_bytes) may be for that peer alone; the rest is the same for all, or says more in later calls. verbs
  /// makes the queue pair for that peer here.
  virtual std::vector<std::byte> address(int /*peer*/) { return {}; }
  /// Tells from the peer's address blob whether it can be reached, and why or why not.
  virtual Reach can_reach(int /*peer*/, std::span<const std::byte> /*address*/) const { return {true, {}}; }
  /// Starts to connect and returns at once. Throws Error(refused) if the blob is malformed or the peer can't be reached,
  /// Error(disconnected) if connecting fails at once.
  virtual void connect(int /*peer*/, std::span<const std::byte> /*address*/) {}
  /// Returns true once the peer may write to this end. Moves the connection on, so call it repeatedly.
  virtual bool linked(int /*peer*/) { return true; }
  /// Returns true once bytes have provably reached the peer. Moves the connection on, so call it repeatedly.
  virtual bool connected(int /*peer*/) { return true; }
  /// Returns why the connection to a peer, or the attempt to make it, is broken; empty if it isn't.
  virtual std::string broken(int /*peer*/) const { return {}; }
  /// Gives up what was made for a peer to whom another transport will lead. Nothing else is called for that peer afterwards.
  virtual void forget(int /*peer*/) {}

  /// Makes memory addressable for peers (shm: it must lie in this rank's heap; verbs: its slabs are registered; tcp: nothing to
  /// do). Registering again what is registered costs nothing. Throws Error(refused) outside the heap, Error(out_of_memory)
  /// naming the limit that stood in the way.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  /// Returns what register_memory(memory) would keep in place: `memory`, or more of the heap around it. What the system takes
  /// large pages for has to be taken before: those that a NIC uses stay as they are.
  virtual std::span<std::byte> registration_of(std::span<std::byte> memory) const { return memory; }
  /// Returns true if a NIC keeps using the pages of registered memory, even if others are mapped at their addresses later: such
  /// memory must not be given back to the system.
  virtual bool pins_memory() const { return false; }

  /// Ends the way to a peer in good order. Call progress() and it until it returns true: then everything sent has reached the
  /// peer, or the way is broken, and as far as the peer goes this process may exit.
  virtual bool close(int peer) = 0;
  /// Returns true once the peer is known to send nothing more: it has closed its end, or the way to it is broken. A transport
  /// that can't tell returns false; the flight board tells then.
  virtual bool parted(int /*peer*/) const { return false; }
  /// Returns the first message that has arrived on an incoming lane and for which nobody has posted a receive; none: there is
  /// none, or the way to its peer broke before that had closed its end.
  virtual std::optional<Found> unreceived(LaneId lane) const = 0;
  /// Returns the traffic of all lanes so far. Viewed payloads count as received when access() hands them out, as many bytes as it
  /// hands out; bytes that decorators added count under Purpose::none.
  virtual const TrafficCounters& counters() const = 0;
};

}  // namespace tsprun::detail
