// What the ranks of a node know of their job: it crosses processes in the node's memory.
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"
#include "transport/factory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fcntl.h>
#include <string>

namespace tsprun::detail::bootstrap::job_description_test {
namespace {

shm::NodeMemory memory_of(std::uint32_t local_ranks, std::uint32_t world_size) {
  return shm::NodeMemory::create_memfd({.local_ranks = local_ranks, .heap_bytes = 1 << 20, .world_size = world_size});
}

TEST(JobDescription, IsReadByWhoeverAttachesToTheMemory) {
  const shm::NodeMemory maker = memory_of(2, 5);
  JobDescription job{.first_rank = 3,
                     .node = 1,
                     .nodes = 2,
                     .cores = 7,
                     .timeout_ns = 9,
                     .tls = 1,
                     .intra = demand_for("tcp"),
                     .inter = demand_for("verbs")};
  std::ranges::fill(job.rdma, 'r');  // as long as can be: no NUL ends it
  std::string("::1:4711").copy(job.store, sizeof job.store);
  const Secret secret = secret_from_text("of this job");
  describe_job(maker, job, secret);

  const shm::NodeMemory other = shm::NodeMemory::attach(posix::UniqueFd(::fcntl(maker.descriptor(), F_DUPFD, 0)));
  const JobDescription read = job_of(other);
  EXPECT_EQ(read.first_rank, 3U);
  EXPECT_EQ(read.node, 1U);
  EXPECT_EQ(read.nodes, 2U);
  EXPECT_EQ(read.cores, 7U);
  EXPECT_EQ(read.timeout_ns, 9U);
  EXPECT_EQ(read.supervised, 0U);
  EXPECT_EQ(read.tls, 1U);
  EXPECT_EQ(read.intra, demand_for("tcp"));
  EXPECT_EQ(read.inter, demand_for("verbs"));
  EXPECT_EQ(read.rdma_device(), std::string(sizeof job.rdma, 'r'));
  EXPECT_EQ(read.store_address(), "::1:4711");
  EXPECT_TRUE(secret_of(other) == secret);
}

TEST(JobDescription, HasTheEmptySecretIfNoneIsGiven) {
  const shm::NodeMemory memory = memory_of(1, 1);
  describe_job(memory, {});
  EXPECT_TRUE(secret_of(memory) == Secret());
}

void expect_cause(Cause cause, const char* text, const auto& action) {
  try {
    action();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), cause);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(JobDescription, RefusesRanksThatTheWorldDoesNotHave) {
  const shm::NodeMemory memory = memory_of(2, 5);
  expect_cause(Cause::refused, "ranks 4 to 5", [&] { describe_job(memory, {.first_rank = 4}); });
  expect_cause(Cause::refused, "node 2 of 2", [&] { describe_job(memory, {.node = 2, .nodes = 2}); });
  EXPECT_NO_THROW(describe_job(memory, {.first_rank = 3}));
}

TEST(JobDescription, IsMissedInDamagedMemory) {
  const auto damaged = [](std::size_t at) {
    const shm::NodeMemory memory = memory_of(2, 5);
    describe_job(memory, {});
    EXPECT_NO_THROW(job_of(memory));
    memory.job_bytes()[at] = std::byte{0xff};
    expect_cause(Cause::corrupt, "doesn't describe the job", [&] { job_of(memory); });
  };
  damaged(offsetof(JobDescription, first_rank));
  damaged(offsetof(JobDescription, node));
  damaged(offsetof(JobDescription, nodes));
  damaged(offsetof(JobDescription, supervised));
  damaged(offsetof(JobDescription, intra));
  damaged(offsetof(JobDescription, tls));
  damaged(offsetof(JobDescription, inter));
}

TEST(JobDescription, IsMissedInMemoryThatHasNone) {
  const shm::NodeMemory memory = memory_of(1, 1);
  expect_cause(Cause::corrupt, "doesn't describe the job", [&] { job_of(memory); });
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::job_description_test
