// Makes this process a rank of its job, once for all its process groups, and takes it out again.
#include "process_group.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
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

std::shared_ptr<Progress> Member::progress() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(progress_, "tsprun: this process has left its job");
  return progress_;
}

void Member::leave() {
  if (::getpid() != process_) return;
  std::shared_ptr<Progress> last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    last = std::move(progress_);
  }
  while (last.use_count() > 1) std::this_thread::yield();  // calls that began before
  last.reset();
  context_.leave();
}

HeapBlock Member::allocate(std::size_t bytes) {
  HeapBlock block;
  if (::getpid() != process_) return block;
  try {
    progress()->use([&](Context& context) { block = context.allocate(bytes, "tensor"); });
  } catch (const std::exception&) {
    // No room, or the process has left: the tensor lies elsewhere, and is copied when it travels.
  }
  return block;
}

void Member::give_back(HeapBlock block) {
  if (::getpid() != process_) {
    new (std::nothrow) HeapBlock(std::move(block));
    return;
  }
  std::shared_ptr<Progress> shared;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    shared = progress_;
    if (!shared) kept_.push_back(std::move(block));
  }
  if (shared) shared->use([&](Context&) { block.reset(); });
}

std::shared_ptr<Member> current_membership() {
  const std::lock_guard<std::mutex> lock(member_mutex);
  return the_member();
}

std::shared_ptr<Member> membership(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const std::lock_guard<std::mutex> lock(member_mutex);
  std::shared_ptr<Member>& member = the_member();
  if (!member) member = std::make_shared<Member>(join(store, rank, size));
  const Context& joined = member->context();
  TORCH_CHECK(joined.rank() == rank && joined.size() == size, "tsprun: this process is rank ", joined.rank(), " of ",
              joined.size(), " in its job, and can't be rank ", rank, " of ", size, " in a process group of all ranks");
  return member;
}

void leave() {
  std::shared_ptr<Member> member;
  {
    const std::lock_guard<std::mutex> lock(member_mutex);
    member = std::exchange(the_member(), nullptr);
  }
  if (member) member->leave();
}

}  // namespace tsprun::torch_binding
