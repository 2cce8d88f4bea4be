// A buffer in heap or plain memory between guard elements that nobody may write.
#pragma once

#include "core/memory/heap.h"
#include "tests/support/oracle.h"
#include "tsprun/types.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::test {

template <Element T>
class Guarded {
 public:
  /// `heap` null: plain memory. The seed decides by how many elements the start is off any alignment beyond the element's own.
  Guarded(Heap* heap, std::size_t count, std::uint64_t seed)
      : count_(count), before_(1 + static_cast<std::size_t>(mix(seed, 2) % 7)) {
    const std::size_t bytes = (before_ + count + kAfter) * sizeof(T);
    if (heap != nullptr) {
      block_ = heap->allocate(bytes, "test buffer");
      all_ = block_.template as<T>();
    } else {
      // f64 is the strictest alignment that any element needs.
      plain_.resize((bytes + sizeof(double) - 1) / sizeof(double));
      all_ = {reinterpret_cast<T*>(plain_.data()), bytes / sizeof(T)};
    }
    std::fill(as_bytes().begin(), as_bytes().end(), kGuard);
  }

  std::span<T> elements() { return all_.subspan(before_, count_); }
  std::span<const T> elements() const { return all_.subspan(before_, count_); }

  bool guards_intact() const {
    const std::span<const std::byte> bytes = std::as_bytes(all_);
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const std::size_t end = (before_ + count_) * sizeof(T);
    return std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(before_ * sizeof(T)), is_guard) &&
           std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(end),
                       bytes.begin() + static_cast<std::ptrdiff_t>(end + kAfter * sizeof(T)), is_guard);
  }

 private:
  static constexpr std::size_t kAfter = 5;
  static constexpr std::byte kGuard{0xc5};

  std::span<std::byte> as_bytes() { return std::as_writable_bytes(all_); }

  std::size_t count_;
  std::size_t before_;
  HeapBlock block_;
  std::vector<double> plain_;
  std::span<T> all_;
};

}  // namespace tsprun::detail::test
