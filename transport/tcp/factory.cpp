// The row of TCP in the table of transports.
#include "transport/factory.h"

#include "transport/bootstrap/handshake.h"
#include "transport/bootstrap/store.h"
#include "transport/cause.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/trial.h"

namespace tsprun::detail::tcp {

namespace {

Factory::Made make(const Factory::Setup& setup) {
  const std::vector<std::byte> job = setup.store->get(std::string(bootstrap::kJobKey), "the store to say which job this is");
  auto transport =
      std::make_unique<TcpTransport>(TcpOptions{.rank = setup.rank(),
                                                .world_size = static_cast<int>(setup.memory.layout().world_size),
                                                .host = setup.store->local_host(),
                                                .secret = bootstrap::lanes_secret(bootstrap::secret_of(setup.memory), job),
                                                .tls = setup.job.tls != 0,
                                                .timeout_ns = setup.timeout_ns,
                                                .check = &setup.check});
  setup.store->also_watch(transport->descriptor());
  return {.endpoint = std::move(transport), .numbers = setup.peers};
}

std::string attempt(std::string_view /*device*/) {
  const posix::Mapping memory = trial::map();
  TcpOptions options{.rank = 0, .world_size = 2, .secret = bootstrap::random_secret(), .timeout_ns = trial::kDeadline_ns};
  TcpTransport left(options);
  options.rank = 1;
  TcpTransport right(options);
  left.connect(1, right.address(0));
  right.connect(0, left.address(1));
  trial::until(
      [&] {
        const bool one = left.connected(1);
        for (const std::string& why : {left.broken(1), right.broken(0)}) {
          if (!why.empty()) throw Error(Cause::disconnected, why);
        }
        return right.connected(0) && one;
      },
      "connecting two sockets");
  trial::exchange({left, 1}, {right, 0}, memory);
  return "loopback; two ends connected and 1 MiB arrived whole";
}

}  // namespace

constinit const Factory kFactory{.name = "tcp",
                                 .within_node = Factory::Use::always,
                                 .between_nodes = Factory::Use::always,
                                 .make = make,
                                 .attempt = attempt,
                                 .to_tell = "to say where it listens"};

}  // namespace tsprun::detail::tcp
