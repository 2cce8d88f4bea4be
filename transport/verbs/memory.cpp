// Registers slabs and regions with the NIC, and explains failures by the limit of locked memory.
#include "transport/verbs/memory.h"

#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <limits>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::verbs {

namespace {

constexpr const char* kHowToRaise =
    "raise it with ulimit -l unlimited, LimitMEMLOCK= of systemd, or memlock in /etc/security/limits.conf";

/// Returns true if the limit of locked memory applies: a process with CAP_IPC_LOCK isn't bound by it.
bool bound_by_limit() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return true;
  return (data[0].effective & (1U << CAP_IPC_LOCK)) == 0;
}

}  // namespace

std::string locked_memory_shortage(int peers, std::size_t heap_bytes, std::size_t adapters, std::size_t pairs) {
  const std::uint64_t limit = machine::limit_locked_memory();
  // Queues of completions may be twice as long as what is taken of them.
  const std::uint64_t of_queues = kSmall.pinned_bytes() + kWhole.pinned_bytes() + kWhole.completion_bytes();
  const std::uint64_t of_others =
      (std::min<std::uint64_t>(adapters * pairs, kMostWays) - 1) * (kPayloads.pinned_bytes() + kPayloads.completion_bytes());
  const std::uint64_t needed =
      2 * adapters * (doors_bytes(static_cast<std::size_t>(peers)) + static_cast<std::uint64_t>(peers) * kQueues * kRingBytes) +
      static_cast<std::uint64_t>(peers) * (of_queues + of_others) + adapters * std::min(heap_bytes, kSlabBytes);
  if (limit >= needed || !bound_by_limit()) return {};
  return fmt::format("a rank may need to lock up to {} MiB for the NIC, and locked memory is limited to {} KiB: {}",
                     (needed >> 20) + 1, limit >> 10, kHowToRaise);
}

Registration register_bytes(ibv_pd* pd, std::span<std::byte> memory, const char* what) {
  // The NIC may write payload in any order that suits the bus: nobody looks at it before its completion, which comes after it.
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  Registration registration(
      library().reg_mr_iova2(pd, memory.data(), memory.size(), reinterpret_cast<std::uint64_t>(memory.data()), kAccess));
  if (registration) return registration;
  const int error = errno;
  const std::uint64_t limit = machine::limit_locked_memory();
  const std::string message = fmt::format("verbs: {:.4g} MiB of {} can't be registered with the NIC",
                                          static_cast<double>(memory.size()) / (1 << 20), what);
  if (error == ENOMEM && limit != std::numeric_limits<std::uint64_t>::max()) {
    throw system_error(Cause::out_of_memory,
                       fmt::format("{} (locked memory is limited to {} KiB: {})", message, limit >> 10, kHowToRaise), error);
  }
  throw system_error(Cause::out_of_memory, message, error);
}

bool Slabs::in_heap(std::span<const std::byte> memory) const {
  return memory.data() >= heap_.data() && memory.data() <= heap_.data() + heap_.size() &&
         memory.size() <= static_cast<std::size_t>(heap_.data() + heap_.size() - memory.data());
}

template <class Visit>
bool Slabs::each_slab(std::span<const std::byte> memory, Visit&& visit) const {
  if (memory.empty()) return true;
  const std::size_t end = static_cast<std::size_t>(memory.data() - heap_.data()) + memory.size();
  for (std::size_t slab = slab_of(memory.data()); slab * kSlabBytes < end; ++slab) {
    if (!visit(slab, std::min(kSlabBytes, end - slab * kSlabBytes))) return false;
  }
  return true;
}

std::size_t Slabs::bytes_for(std::size_t slab, std::size_t used) const {
  const std::size_t begin = slab * kSlabBytes;
  const std::size_t whole = std::min(kSlabBytes, heap_.size() - begin);
  const std::size_t expected = expected_ > begin ? expected_ - begin : 0;
  return used <= expected ? std::min(whole, expected) : whole;
}

std::span<std::byte> Slabs::around(std::span<std::byte> memory) const {
  if (!in_heap(memory)) return memory;
  std::size_t begin = static_cast<std::size_t>(memory.data() - heap_.data());
  std::size_t end = begin + memory.size();
  each_slab(memory, [&](std::size_t number, std::size_t used) {
    if (slabs_[number].bytes >= used) return true;
    begin = std::min(begin, number * kSlabBytes + slabs_[number].bytes);
    end = std::max(end, number * kSlabBytes + bytes_for(number, used));
    return true;
  });
  return heap_.subspan(begin, end - begin);
}

void Slabs::add(std::span<const std::byte> memory) {
  if (!in_heap(memory)) throw Error(Cause::refused, "verbs: only memory of the rank's own heap can be registered");
  each_slab(memory, [this](std::size_t number, std::size_t used) {
    Slab& slab = slabs_[number];
    if (slab.bytes >= used) return true;
    const std::size_t begin = number * kSlabBytes;
    const std::size_t bytes = bytes_for(number, used);
    Registration registration = register_bytes(pd_, heap_.subspan(begin, bytes), "the heap");
    // The heap is shared memory, which no fork copies: children may have it.
    if (registering_hides_memory()) ::madvise(heap_.data() + begin, bytes, MADV_DOFORK);
    slab.first = std::exchange(slab.registration, std::move(registration));
    slab.bytes = bytes;
    return true;
  });
}

bool Slabs::covers(std::span<const std::byte> memory) const {
  return memory.empty() || (in_heap(memory) && each_slab(memory, [this](std::size_t number, std::size_t used) {
                              return slabs_[number].bytes >= used;
                            }));
}

Slabs::Piece Slabs::piece(std::span<const std::byte> memory) const {
  assert(covers(memory) && !memory.empty());
  const std::size_t slab = slab_of(memory.data());
  const std::size_t left = (slab + 1) * kSlabBytes - static_cast<std::size_t>(memory.data() - heap_.data());
  return {std::min(memory.size(), left), slabs_[slab].registration->lkey, slabs_[slab].registration->rkey};
}

Region::Region(ibv_pd* pd, std::size_t bytes) : pages_(bytes) {
  if (!pages_) throw system_error(Cause::out_of_memory, "verbs: memory for a peer's messages", errno);
  // After a fork, copy-on-write could leave the pages that the NIC writes to the child.
  ::madvise(data(), bytes, MADV_DONTFORK);
  share(pd);
}

void Region::share(ibv_pd* pd) { registrations_.push_back(register_bytes(pd, pages_.bytes(), "message buffers")); }

}  // namespace tsprun::detail::verbs
