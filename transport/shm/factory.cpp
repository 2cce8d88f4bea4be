// The row of shared memory in the table of transports.
#include "transport/factory.h"

#include "transport/shm/shm_transport.h"

namespace tsprun::detail::shm {

namespace {

Factory::Made make(const Factory::Setup& setup) {
  Factory::Made made{.endpoint = std::make_unique<ShmTransport>(setup.memory, setup.local_rank), .numbers = {}};
  for (const int rank : setup.peers) made.numbers.push_back(rank - static_cast<int>(setup.job.first_rank));
  return made;
}

/// Makes the smallest node memory and writes to it.
std::string attempt(std::string_view /*device*/) {
  const NodeMemory memory = NodeMemory::create_memfd({.heap_bytes = std::uint64_t{1} << 20});
  memory.heap(0).front() = std::byte{1};
  return "a memfd was made, mapped and written";
}

}  // namespace

constinit const Factory kFactory{
    .name = "shm", .within_node = Factory::Use::always, .views = true, .make = make, .attempt = attempt};

}  // namespace tsprun::detail::shm
