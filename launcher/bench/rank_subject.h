// Subject of `bench` on a rank of a job: what is measured, and what the ranks tell each other besides.
#pragma once

#include "core/context.h"
#include "launcher/bench/measure.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::bench {

/// One rank of a job, as the measurements see it: runs the operations on its buffers.
class RankSubject final : public Subject {
 public:
  /// Allocates buffers of these sizes. `context` is borrowed.
  RankSubject(Context& context, BufferBytes need);

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void barrier() override { world_.barrier(); }
  void send(std::span<const double> values, int to) override { world_.send(ConstBuffer(values), to); }
  void receive(std::span<double> values, int from) override { world_.recv(Buffer(values), from); }
  std::span<std::byte> input() override { return input_.bytes(); }
  std::span<std::byte> output() override { return output_.bytes(); }
  void tick() override { context_.tick(); }

  void run(const Case& which, std::uint64_t times) override;

 private:
  void run_once(const Case& which, ConstBuffer in, Buffer out);

  Context& context_;
  Communicator& world_;
  std::vector<std::size_t> parts_;  // elements sent to and received from each rank by the all_to_all_v that runs
  HeapBlock input_;
  HeapBlock output_;
};

/// Names of the transports that carry messages, for the head and the rows of the table.
struct TransportNames {
  std::string all;   ///< all transports between any two ranks: "shm+tcp"
  std::string pair;  ///< the transport between ranks 0 and 1, which alone carries a ping-pong

  const std::string& of(Kind kind) const { return kind == Kind::pingpong ? pair : all; }
};

/// Returns the names on rank 0, nothing on others. A rank knows only its own transports, so each sends rank 0 a bit for each that
/// it uses.
TransportNames transport_names(Context& context, Subject& subject);
/// Returns a seed that is different in every run and the same on all ranks.
std::uint32_t fresh_seed(Subject& subject);

}  // namespace tsprun::detail::bench
