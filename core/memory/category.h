// Categories of memory. Every byte that a rank allocates from its heap has one; reports, audits and forecasts sum by category.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tsprun {

// X(enumerator = name in reports, what it holds)
#define TSP_CATEGORIES(X)                                                             \
  X(parameters, "weights, in the type of the model")                                  \
  X(gradients, "this rank's gradients, in the type of sums")                          \
  X(optimizer, "moments, and master weights where parameters are bf16")               \
  X(activations, "what the forward pass keeps for the backward pass, and the tokens") \
  X(communication, "buffers that other ranks' parts arrive in or leave from")         \
  X(workspace, "tensors of one step of a schedule, and scratch of kernels")

enum class Category : std::uint8_t {
#define TSP_X(name, text) name,
  TSP_CATEGORIES(TSP_X)
#undef TSP_X
};
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

}  // namespace tsprun
