// Matrix products by tsprun's kernels and by OpenBLAS in turns, at the shapes of real blocks.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <vector>

namespace tsprun::bench {

/// Shapes to measure.
struct ProductOptions {
  std::vector<std::size_t> hidden = {1024, 2048, 4096};  ///< widths of blocks; that of 1024 has a gated MLP of 2816
  std::vector<std::size_t> threads = {1, 2};
};

/// Prints a table with a row for each product and number of threads: the speed by each library and by one bare call of OpenBLAS
/// on one thread, medians over the rounds, and tsprun's over the better of OpenBLAS' on as many threads. Returns it as JSON.
nlohmann::json compare_products(const ProductOptions& options, int rounds);

}  // namespace tsprun::bench
