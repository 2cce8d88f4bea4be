// The order in which blocks of tensors are read and written: runs that are contiguous in the file, cut into pieces.
#pragma once

#include "layers/io/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail::safetensors {

/// Calls body(offset in the file, first element within the block, count) for each piece of a block that isn't empty. A piece has
/// at most `most` elements.
template <class Body>
void for_pieces(const TensorInfo& tensor, const Rectangle& block, std::size_t most, Body&& body) {
  const bool one_run = block.columns == tensor.columns();
  const std::size_t runs = one_run ? 1 : block.rows;
  const std::size_t run_elements = one_run ? block.rows * block.columns : block.columns;
  for (std::size_t run = 0; run < runs; ++run) {
    const std::uint64_t first = (block.first_row + run) * tensor.columns() + block.first_column;
    for (std::size_t done = 0; done < run_elements; done += most) {
      body(tensor.offset + (first + done) * size_of(tensor.type), run * run_elements + done, std::min(most, run_elements - done));
    }
  }
}

}  // namespace tsprun::detail::safetensors
