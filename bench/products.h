// Matrix products by tsprun's kernels and by OpenBLAS in turns, at the shapes of real blocks.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>

namespace tsprun::bench {

/// Shapes to measure.
struct ProductOptions {
  std::size_t most_hidden = 4096;  ///< leave out blocks that are wider
  int rounds = 5;
};

/// Prints a table with a row for each product and number of threads: the speed by each library and by one bare call of OpenBLAS
/// on one thread, medians over the rounds, and tsprun's over the better of OpenBLAS' on as many threads. Returns it as JSON.
nlohmann::json compare_products(const ProductOptions& options);

}  // namespace tsprun::bench
