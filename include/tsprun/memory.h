// A rank's heap: memory that the ranks of its node can read in place and that NICs read and write. Payloads that lie in it move
// between ranks with one copy; others are copied into it first. Context::allocate() hands it out.
#pragma once

#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace tsprun {

namespace detail {
class Heap;
}

// X(enumerator = name in reports, what it holds)
#define TSP_CATEGORIES(X)                                                             \
  X(parameters, "weights, in the type of the model")                                  \
  X(gradients, "this rank's gradients, in the type of sums")                          \
  X(optimizer, "moments, and master weights where parameters are bf16")               \
  X(activations, "what the forward pass keeps for the backward pass, and the tokens") \
  X(communication, "buffers that other ranks' parts arrive in or leave from")         \
  X(workspace, "tensors of one step of a schedule, and scratch of kernels")

/// Categories of memory: the table above. Every block has one; reports, and the error of an exhausted budget, sum by category.
enum class Category : std::uint8_t {
#define TSP_X(name, text) name,
  TSP_CATEGORIES(TSP_X)
#undef TSP_X
};
/// Number of categories.
inline constexpr std::size_t kCategories = 6;

/// Returns the name of a category, as in the JSON report.
constexpr std::string_view name(Category category) {
  constexpr std::string_view kNames[] = {
#define TSP_X(name, text) #name,
      TSP_CATEGORIES(TSP_X)
#undef TSP_X
  };
  return kNames[static_cast<std::size_t>(category)];
}

/// Bytes by category. In peaks, `total` is the peak of the sum, not the sum of the peaks.
struct CategoryBytes {
  std::array<std::uint64_t, kCategories> of{};
  std::uint64_t total = 0;

  std::uint64_t& operator[](Category category) { return of[static_cast<std::size_t>(category)]; }
  std::uint64_t operator[](Category category) const { return of[static_cast<std::size_t>(category)]; }
  bool operator==(const CategoryBytes&) const = default;
};

/// Owns a block of a rank's heap and gives it back when destroyed, which the context must outlive. Movable, not copyable; used by
/// the rank's thread.
class HeapBlock {
 public:
  /// Makes an empty block.
  HeapBlock() = default;
  HeapBlock(HeapBlock&& other) noexcept
      : heap_(std::exchange(other.heap_, nullptr)), bytes_(std::exchange(other.bytes_, {})), category_(other.category_) {}
  HeapBlock& operator=(HeapBlock&& other) noexcept {
    if (this != &other) {
      reset();
      heap_ = std::exchange(other.heap_, nullptr);
      bytes_ = std::exchange(other.bytes_, {});
      category_ = other.category_;
    }
    return *this;
  }
  ~HeapBlock() { reset(); }

  /// Gives the block back now; it is empty afterwards. Don't while an operation uses it.
  void reset();
  /// Returns the memory, aligned to 64 bytes. It isn't zeroed.
  std::span<std::byte> bytes() const { return bytes_; }
  /// Returns the block as elements of T; trailing bytes that fill no element are left out.
  template <Element T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  friend class detail::Heap;
  HeapBlock(detail::Heap* heap, std::span<std::byte> bytes, Category category)
      : heap_(heap), bytes_(bytes), category_(category) {}
  detail::Heap* heap_ = nullptr;
  std::span<std::byte> bytes_;
  Category category_ = Category::communication;
};

}  // namespace tsprun
