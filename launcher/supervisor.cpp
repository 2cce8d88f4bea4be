#include "launcher/supervisor.h"

#include "launcher/job.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/shm/node_memory.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tsp::launcher {

namespace {

constexpr std::uint64_t kSmallestHeap = std::uint64_t{1} << 20;

std::uint64_t heap_bytes(const GlobalOptions& global) {
  if (global.mem_per_rank != 0) return global.mem_per_rank / shm::kPage * shm::kPage;
  // A rank maps the node's memory whole and needs as much address space again for itself.
  const std::uint64_t share = machine::limit_address_space() / 2 / static_cast<std::uint64_t>(global.ranks);
  const std::uint64_t heap = std::min(shm::default_heap_bytes(), share / shm::kPage * shm::kPage);
  if (heap < kSmallestHeap) {
    throw Error(Cause::refused,
                fmt::format("-n {}: `ulimit -v` leaves {} bytes of address space for each rank's heap, {} are needed; raise the "
                            "limit or try fewer ranks",
                            global.ranks, heap, kSmallestHeap));
  }
  return heap;
}

shm::NodeLayout node_layout(const GlobalOptions& global) {
  shm::NodeLayout layout;
  layout.local_ranks = static_cast<std::uint32_t>(global.ranks);
  layout.world_size = layout.local_ranks;
  layout.heap_bytes = heap_bytes(global);
  layout.timeout_ns = global.timeout_ns;
  layout.cores = static_cast<std::uint32_t>(machine::usable_cores());
  layout.supervised = 1;
  return layout;
}

}  // namespace

int run_job(const JobSpec& spec, Report& report) {
  const GlobalOptions& global = *spec.global;
  Job job(spec, shm::NodeMemory::create_memfd(node_layout(global)));
  // What waits in stdio's buffers would be written once more by every forked rank.
  std::fflush(nullptr);
  spdlog::debug("{} ranks on {} cores over shm", global.ranks, machine::usable_cores());
  job.start();
  job.watch();

  for (const auto& [key, value] : job.results().items()) report.root()[key] = value;
  if (job.failure().cause != Cause::none) {
    report.set_failure(job.failure(), waiting_ranks(job.failure(), job.records(), 0));
    job.print_on_stderr(print_verdict(job.failure(), job.records(), 0));
  }
  return job.exit_code();
}

}  // namespace tsp::launcher
