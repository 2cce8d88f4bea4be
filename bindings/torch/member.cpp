// How this process becomes a rank of its job, once for all its process groups, and leaves it.
#include "process_group.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::torch_binding {

namespace {

std::mutex member_mutex;
std::shared_ptr<Member>& the_member() {
  static auto* const member = new std::shared_ptr<Member>();  // never destroyed: leave() decides when
  return *member;
}

Context join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  if (std::getenv("TSP_NODE_FD") != nullptr) return Context::from_environment();
  static constexpr const char* kKey = "tsprun/job";
  if (rank == 0) {
    std::random_device random;
    std::string job = "torch-";
    for (int i = 0; i < 4; ++i) job += std::to_string(random()) + (i < 3 ? "." : "");
    store->set(kKey, std::vector<std::uint8_t>(job.begin(), job.end()));
  }
  const std::vector<std::uint8_t> job = store->get(kKey);
  return Context::meet(rank, size, std::string(job.begin(), job.end()));
}

}  // namespace

std::shared_ptr<Member> membership(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const std::lock_guard<std::mutex> lock(member_mutex);
  std::shared_ptr<Member>& member = the_member();
  if (!member) member = std::make_shared<Member>(join(store, rank, size));
  TORCH_CHECK(member->context.rank() == rank && member->context.size() == size, "tsprun: this process is rank ",
              member->context.rank(), " of ", member->context.size(), " in its job, and can't be rank ", rank, " of ", size,
              " in a process group of all ranks");
  return member;
}

void leave() {
  std::shared_ptr<Member> member;
  {
    const std::lock_guard<std::mutex> lock(member_mutex);
    member = std::exchange(the_member(), nullptr);
  }
}

}  // namespace tsprun::torch_binding
