// The row of RDMA in the table of transports.
#include "transport/factory.h"

#include "transport/cause.h"
#include "transport/trial.h"
#include "transport/verbs/device.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/verbs/wire.h"

#include <fmt/format.h>

#include <numeric>

namespace tsprun::detail::verbs {

namespace {

Factory::Made make(const Factory::Setup& setup) {
  const std::string here = fmt::format("node {}", setup.job.node);
  Factory::Made made;
  try {
    made.endpoint =
        std::make_unique<VerbsTransport>(VerbsOptions{.device = std::string(setup.job.rdma_device()),
                                                      .local_rank = setup.local_rank,
                                                      .local_ranks = static_cast<int>(setup.memory.layout().local_ranks),
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

std::string lacks() { return any_device() ? "" : no_device(); }

std::string shortage(std::string_view device, int ranks, int peers) {
  const Ports ports = list_ports();
  for (int local = 0; local < ranks; ++local) choose_port(ports, DeviceChoice::parse(std::string(device)), local);
  return locked_memory_shortage(peers);
}

std::string attempt(std::string_view device) {
  const posix::Mapping memory = trial::map();
  const std::span<std::byte> heap = memory.bytes();
  const VerbsOptions options{.device = std::string(device), .timeout_ns = trial::kDeadline_ns, .peers = 1, .heap = heap};
  VerbsTransport left(options);
  VerbsTransport right(options);
  for (VerbsTransport* end : {&left, &right}) {
    if (!end->why_not().empty()) throw Error(Cause::refused, end->why_not());
    end->register_memory(heap);
  }
  const std::vector<std::byte> address = left.address(0);
  left.connect(0, right.address(0));
  right.connect(0, address);
  trial::until([&] { return left.linked(0) && right.linked(0); }, "linking two queue pairs");
  trial::until(
      [&] {
        const bool one = left.connected(0);
        return right.connected(0) && one;
      },
      "a probe between two queue pairs");
  trial::exchange({left, 0}, {right, 0}, memory);
  return left.chosen() + "; two ends connected and 1 MiB arrived whole";
}

}  // namespace

constinit const Factory kFactory{.name = "verbs",
                                 .between_nodes = Factory::Use::if_reachable,
                                 .missing = "no RDMA",
                                 .device_option = "--rdma",
                                 .make = make,
                                 .attempt = attempt,
                                 .lacks = lacks,
                                 .shortage = shortage,
                                 .to_tell = "to say which RDMA device it has",
                                 .own_bytes = sizeof(OwnFields),
                                 .to_link = "to connect its queue pairs"};

}  // namespace tsprun::detail::verbs
