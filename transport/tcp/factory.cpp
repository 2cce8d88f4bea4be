// The row of TCP in the table of transports.
#include "transport/factory.h"

#include "transport/bootstrap/store.h"
#include "transport/tcp/tcp_transport.h"

namespace tsprun::detail::tcp {

namespace {

/// Any two ranks can be connected by sockets.
Factory::Claim claim(const bootstrap::JobDescription& /*job*/, Factory::Distance /*distance*/) {
  return {Factory::Claim::Answer::yes};
}

Factory::Made make(const Factory::Setup& setup) {
  const std::vector<std::byte> job = setup.store->get(std::string(bootstrap::kJobKey), "the store to say which job this is");
  auto transport =
      std::make_unique<TcpTransport>(TcpOptions{.rank = setup.rank(),
                                                .world_size = static_cast<int>(setup.memory.layout().world_size),
                                                .host = setup.store->local_host(),
                                                .secret = bootstrap::lanes_secret(bootstrap::secret_of(setup.memory), job),
                                                .tls = setup.job.tls != 0,
                                                .timeout_ns = setup.timeout_ns});
  setup.store->also_watch(transport->descriptor());
  TcpTransport* const below = transport.get();
  return {.endpoint = std::move(transport), .numbers = setup.peers, .damage_below_check = [below](LaneId lane) {
            below->damage_next(lane);
          }};
}

}  // namespace

constinit const Factory kFactory{.name = "tcp", .claim = claim, .make = make, .to_tell = "to say where it listens"};

}  // namespace tsprun::detail::tcp
