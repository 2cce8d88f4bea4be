// The row of shared memory in the table of transports.
#include "transport/factory.h"

#include "transport/shm/shm_transport.h"

namespace tsprun::detail::shm {

namespace {

/// A rank reaches itself over shared memory even if others of its node aren't reached so.
Factory::Claim claim(const bootstrap::JobDescription& job, Factory::Distance distance) {
  if (distance == Factory::Distance::job) return {Factory::Claim::Answer::no, "another node"};
  if (distance == Factory::Distance::node && job.share == 0) return {Factory::Claim::Answer::no, "same node, but --intra tcp"};
  return {Factory::Claim::Answer::yes};
}

Factory::Made make(const Factory::Setup& setup) {
  Factory::Made made{.endpoint = std::make_unique<ShmTransport>(setup.memory, setup.local_rank), .numbers = {}};
  for (const int rank : setup.peers) made.numbers.push_back(rank - static_cast<int>(setup.job.first_rank));
  return made;
}

}  // namespace

constinit const Factory kFactory{.name = "shm", .claim = claim, .make = make};

}  // namespace tsprun::detail::shm
