// Replaces libcrypto's allocation functions by a locked pool of pages that core dumps leave out.
#include "transport/bootstrap/libcrypto_heap.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/mman.h>

namespace tsprun::detail::bootstrap {

namespace {

/// Largest piece that shares its pages with others: libssl's buffers of one record are 17 KiB.
constexpr std::size_t kLargestShared = 32768;

/// Pages that core dumps leave out.
class HiddenPages final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    ::madvise(base, bytes, MADV_DONTDUMP);
    return base;
  }
  void do_deallocate(void* base, std::size_t bytes, std::size_t) override { ::munmap(base, bytes); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// Size of a piece, which lies before it.
struct alignas(std::max_align_t) PieceHeader {
  std::size_t bytes;
};

/// The heap. Its lock is held over a fork(2), so that the child's copy is whole.
struct LibcryptoHeap {
  HiddenPages pages;
  std::pmr::unsynchronized_pool_resource pools{{.max_blocks_per_chunk = 0, .largest_required_pool_block = kLargestShared},
                                               &pages};
  std::mutex mutex;
};

/// Returns the heap, which is never destroyed: libcrypto gives memory back when the process exits, after static objects have
/// gone.
LibcryptoHeap& libcrypto_heap() {
  alignas(LibcryptoHeap) static std::byte room[sizeof(LibcryptoHeap)];
  static LibcryptoHeap* const made = new (room) LibcryptoHeap;
  return *made;
}

/// Returns the size of a piece with its header. A multiple of the alignment: the pools of libstdc++ 12 hand out blocks of 24
/// bytes for such a size, whatever the alignment that is asked for.
std::size_t size_with_header(std::size_t bytes) {
  constexpr std::size_t kUnit = alignof(std::max_align_t);
  return (sizeof(PieceHeader) + bytes + kUnit - 1) / kUnit * kUnit;
}

PieceHeader* header_of(void* piece) { return static_cast<PieceHeader*>(piece) - 1; }

void* allocate_piece(std::size_t bytes, const char*, int) {
  try {
    const std::lock_guard<std::mutex> guard(libcrypto_heap().mutex);
    auto* const header = new (libcrypto_heap().pools.allocate(size_with_header(bytes))) PieceHeader{bytes};
    return header + 1;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void free_piece(void* piece, const char*, int) {
  if (piece == nullptr) return;
  PieceHeader* const header = header_of(piece);
  const std::lock_guard<std::mutex> guard(libcrypto_heap().mutex);
  libcrypto_heap().pools.deallocate(header, size_with_header(header->bytes));
}

void* resize_piece(void* piece, std::size_t bytes, const char* file, int line) {
  void* const larger = bytes != 0 ? allocate_piece(bytes, file, line) : nullptr;
  if (piece == nullptr || (larger == nullptr && bytes != 0)) return larger;
  if (larger != nullptr) std::memcpy(larger, piece, std::min(bytes, header_of(piece)->bytes));
  free_piece(piece, file, line);
  return larger;
}

}  // namespace

bool hide_heap_of_libcrypto() {
  if (::CRYPTO_set_mem_functions(allocate_piece, resize_piece, free_piece) != 1) return false;
  ::pthread_atfork([] { libcrypto_heap().mutex.lock(); }, [] { libcrypto_heap().mutex.unlock(); },
                   [] { libcrypto_heap().mutex.unlock(); });
  return true;
}

}  // namespace tsprun::detail::bootstrap
