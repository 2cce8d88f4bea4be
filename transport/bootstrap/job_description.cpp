// Places the description and the secret in the node's first page, and checks what is read from there.
#include "transport/bootstrap/job_description.h"

#include "transport/cause.h"
#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tsprun::detail::bootstrap {

namespace {

constexpr std::size_t kSecretOffset = 1024;
static_assert(sizeof(JobDescription) <= kSecretOffset && kSecretOffset + Secret::kBytes <= shm::kJobBytes);

/// Returns whether the node's ranks lie in the world, the node among the nodes, and each other number among those that it can be.
bool is_possible(const shm::NodeLayout& layout, const JobDescription& job) {
  const auto is_a_kind = [](Demand demand) { return static_cast<std::size_t>(demand) <= kFactories.size(); };
  return job.node < job.nodes && job.nodes <= layout.world_size && job.first_rank <= layout.world_size - layout.local_ranks &&
         job.supervised <= 1 && job.tls <= 1 && is_a_kind(job.intra) && is_a_kind(job.inter);
}

}  // namespace

std::string_view JobDescription::rdma_device() const { return {rdma, ::strnlen(rdma, sizeof rdma)}; }

std::string_view JobDescription::store_address() const { return {store, ::strnlen(store, sizeof store)}; }

void describe_job(const shm::NodeMemory& memory, const JobDescription& job, const Secret& secret) {
  if (const shm::NodeLayout& layout = memory.layout(); !is_possible(layout, job)) {
    throw Error(Cause::refused, fmt::format("ranks {} to {} on node {} of {} don't fit a world of {}", job.first_rank,
                                            job.first_rank + layout.local_ranks - 1, job.node, job.nodes, layout.world_size));
  }
  const std::span<std::byte> bytes = memory.job_bytes();
  std::memcpy(bytes.data(), &job, sizeof job);
  std::ranges::copy(secret.bytes(), bytes.begin() + kSecretOffset);
}

JobDescription job_of(const shm::NodeMemory& memory) {
  JobDescription job;
  std::memcpy(&job, memory.job_bytes().data(), sizeof job);
  if (!is_possible(memory.layout(), job)) throw Error(Cause::corrupt, "node memory: it doesn't describe the job");
  return job;
}

Secret secret_of(const shm::NodeMemory& memory) { return Secret(memory.job_bytes().subspan<kSecretOffset, Secret::kBytes>()); }

}  // namespace tsprun::detail::bootstrap
