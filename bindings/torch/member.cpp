// Makes this process a rank of its job, once for all its process groups, and takes it out again.
#include "process_group.h"
#include "work.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// The store of a process group, as ranks that no tsprun started meet in it.
class GroupStore : public KeyValue {
 public:
  GroupStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix) : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    const auto* const data = reinterpret_cast<const std::uint8_t*>(value.data());
    store_->set(prefix_ + key, std::vector<std::uint8_t>(data, data + value.size()));
  }

  /// Looks now and then: a wait that has timed out leaves the connection to a TCPStore unusable.
  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) override {
    using std::chrono::steady_clock;
    Pause pause;
    for (const steady_clock::time_point begin = steady_clock::now(); !store_->check({prefix_ + key});) {
      if (steady_clock::now() - begin >= at_most) return std::nullopt;
      pause.sleep();
    }
    const std::vector<std::uint8_t> value = store_->get(prefix_ + key);
    const auto* const data = reinterpret_cast<const std::byte*>(value.data());
    return std::vector<std::byte>(data, data + value.size());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

/// Returns true if tsprun started this very process. (What a rank starts in its turn has the variable, but not the descriptor.)
bool is_rank_of_tsprun() {
  const char* const descriptor = std::getenv("TSP_NODE_FD");
  if (descriptor == nullptr) return false;
  char target[64] = {};
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::string(descriptor)).c_str(), target, sizeof target);
  return std::string_view(target, length < 0 ? 0 : static_cast<std::size_t>(length)).starts_with("/memfd:tsprun");
}

Context join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  static bool joined_before = false;
  if (!std::exchange(joined_before, true) && is_rank_of_tsprun()) return Context::from_environment();
  // The store may outlive this process's membership, with its keys.
  const std::int64_t life = store->add("tsprun/joins/" + std::to_string(rank), 1);
  GroupStore meeting(store, "tsprun/" + std::to_string(life) + "/");
  return Context::join(rank, size, meeting);
}

}  // namespace

Member::~Member() {
  // In a process that was forked from the rank's there are no such threads that could be ended.
  if (::getpid() != process_) static_cast<void>(callbacks_.release());
}

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
    last = progress_;
  }
  if (!last) return;
  last->drain();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    progress_ = nullptr;
  }
  while (last.use_count() > 1) std::this_thread::yield();  // calls that began before
  last.reset();
  callbacks_->stop();
  context_.leave();
}

void Member::drop(std::unique_ptr<Communicator> communicator) {
  if (::getpid() != process_) {
    static_cast<void>(communicator.release());
    return;
  }
  std::shared_ptr<Progress> shared;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    shared = progress_;
  }
  if (shared) shared->use([&](Context&) { communicator.reset(); });
}

bool Member::has_failed() const {
  try {
    progress()->use([](Context& context) { context.tick(); });
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

HeapBlock Member::allocate(std::size_t bytes) {
  HeapBlock block;
  if (::getpid() != process_) return block;
  try {
    progress()->use([&](Context& context) {
      if (bytes > context.memory_budget() / 2 - tensor_bytes_) return;  // the other half is for the collectives' own copies
      block = context.allocate(bytes, "tensor");
      tensor_bytes_ += bytes;
    });
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
  if (shared) {
    shared->use([&](Context&) {
      tensor_bytes_ -= block.bytes().size();
      block.reset();
    });
  }
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

void fail(const std::string& text) {
  const std::shared_ptr<Member> member = current_membership();
  TORCH_CHECK(member,
              "fail: this process has joined no job that it could end; call it after init_process_group(\"tsprun\"): ", text);
  try {
    member->progress()->use([&](Context& context) { context.fail(text); });
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error("tsprun", std::current_exception()));
  }
  TORCH_CHECK(false, text);
}

void leave(bool only_if_failed) {
  TORCH_CHECK(!CallbackThreads::inside(), "tsprun: a callback of a future can't leave the job");
  std::shared_ptr<Member> member = current_membership();
  if (only_if_failed && member && !member->has_failed()) return;
  {
    const std::lock_guard<std::mutex> lock(member_mutex);
    member = std::exchange(the_member(), nullptr);
  }
  if (!member) return;
  try {
    member->leave();
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error("tsprun", std::current_exception()));
  }
}

void abort(const std::string& text) {
  if (!current_membership()) return;
  try {
    fail(text);
  } catch (const std::exception&) {
    // So it was to be.
  }
  leave();
}

}  // namespace tsprun::torch_binding
