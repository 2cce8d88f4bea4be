// The row of RDMA in the table of transports.
#include "transport/factory.h"

#include "transport/cause.h"
#include "transport/verbs/verbs_transport.h"

#include <fmt/format.h>

#include <numeric>

namespace tsprun::detail::verbs {

namespace {

Factory::Claim claim(const bootstrap::JobDescription& job, Factory::Distance distance) {
  if (distance != Factory::Distance::job) return {};
  switch (job.inter) {
    case bootstrap::Inter::tcp: return {Factory::Claim::Answer::no, "--inter tcp"};
    case bootstrap::Inter::verbs: return {Factory::Claim::Answer::or_not_at_all, "--inter verbs"};
    default: return {Factory::Claim::Answer::if_reachable, "no RDMA"};
  }
}

Factory::Made make(const Factory::Setup& setup) {
  const std::string here = fmt::format("node {}", setup.job.node);
  Factory::Made made;
  try {
    made.endpoint = std::make_unique<VerbsTransport>(VerbsOptions{.device = std::string(setup.job.rdma_device()),
                                                                  .local_rank = setup.local_rank,
                                                                  .timeout_ns = setup.timeout_ns,
                                                                  .peers = static_cast<int>(setup.peers.size()),
                                                                  .heap = setup.memory.heap(setup.local_rank),
                                                                  .heap_expected = setup.heap_expected,
                                                                  .place = here});
  } catch (const Error& error) {
    throw Error(error.cause(), fmt::format("rank {} on {}: {}", setup.rank(), here, error.what()), setup.rank());
  }
  made.numbers.resize(setup.peers.size());
  std::iota(made.numbers.begin(), made.numbers.end(), 0);
  return made;
}

}  // namespace

constinit const Factory kFactory{.name = "verbs",
                                 .claim = claim,
                                 .make = make,
                                 .to_tell = "to say which RDMA device it has",
                                 .address_per_peer = true,
                                 .to_link = "to connect its queue pairs"};

}  // namespace tsprun::detail::verbs
