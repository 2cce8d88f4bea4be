// Gather is split over rows. Scatter-add is split over columns, so that no two threads write the same element and each sum keeps
// its order.
#include "core/kernels/embedding.h"

#include "core/kernels/check.h"
#include "core/kernels/elementwise.h"

#include <string>

namespace tsprun::detail::kernels {

namespace {

void check_rows(const char* kernel, const ConstTensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows) {
  require(table.dims() == 2 && dense_rows(table), kernel, "the table must be [V, h] with dense rows", table);
  require(values.dims() == 2 && dense_rows(values) && values.size(0) == rows.size() && values.size(1) == table.size(1) &&
              mixes(values.dtype(), table.dtype()),
          kernel, "the values must be [T, h] with a row for each number, of a type that mixes with the table's", values);
  for (const std::uint32_t row : rows) {
    if (row >= table.size(0)) {
      throw std::invalid_argument(std::string(kernel) + ": the table has " + std::to_string(table.size(0)) +
                                  " rows, none of number " + std::to_string(row));
    }
  }
}

}  // namespace

void gather_rows(const Compute& on, const Tensor& out, const ConstTensor& table, std::span<const std::uint32_t> rows) {
  check_rows("gather_rows", table, out, rows);
  for_rows(on, rows.size(), table.size(1), [&](std::size_t first, std::size_t end) {
    for (std::size_t t = first; t < end; ++t) convert({}, out.slice(0, t, 1), table.slice(0, rows[t], 1));
  });
}

void scatter_add_rows(const Compute& on, const Tensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows) {
  check_rows("scatter_add_rows", table, values, rows);
  require(table.dtype() == summed_in(table.dtype()), "scatter_add_rows", "the table must be of a type of sums", table);
  for_columns(on, table.size(1), [&](std::size_t first, std::size_t columns) {
    const Tensor sums = table.slice(1, first, columns);
    const ConstTensor terms = values.slice(1, first, columns);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      const Tensor sum = sums.slice(0, rows[t], 1);
      add({}, sum, sum, terms.slice(0, t, 1));
    }
  });
}

}  // namespace tsprun::detail::kernels
