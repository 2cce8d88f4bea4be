// What kernels share where they look at views: complaints about views that don't fit (a programmer's error, so
// std::invalid_argument), and the walk over rows.
#pragma once

#include "core/tensor/tensor.h"

#include <stdexcept>
#include <string>

namespace tsprun::kernels {

/// Throws "kernel: what, not view" unless `holds`.
inline void require(bool holds, const char* kernel, const char* what, const ConstTensor& view) {
  if (!holds) throw std::invalid_argument(std::string(kernel) + ": " + what + ", not " + view.describe());
}

/// Elements along the last dim lie side by side.
inline bool dense_rows(const ConstTensor& view) {
  if (view.dims() == 0) return false;
  const std::size_t last = view.dims() - 1;
  return view.size(last) <= 1 || view.stride(last) == 1;
}

/// The type that sums of a dtype are kept in: f32 for bf16, else the type itself.
constexpr DType summed_in(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

/// One row for every index of the dims before the last.
inline std::size_t row_count(const ConstTensor& view) {
  std::size_t rows = view.dims() == 0 ? 0 : 1;
  for (std::size_t i = 0; i + 1 < view.dims(); ++i) rows *= view.size(i);
  return rows;
}

/// Elements between a view's first element and row `row`, rows counted in row-major order over the dims before the last.
inline std::size_t row_offset(const ConstTensor& view, std::size_t row) {
  std::size_t offset = 0;
  for (std::size_t i = view.dims() - 1; i-- > 0;) {
    offset += row % view.size(i) * view.stride(i);
    row /= view.size(i);
  }
  return offset;
}

/// The elements of a row, of a type known when the program runs.
struct ConstRow {
  const std::byte* data = nullptr;
  DType dtype = DType::byte;
};
struct Row {
  std::byte* data = nullptr;
  DType dtype = DType::byte;
  operator ConstRow() const { return {data, dtype}; }
};
inline ConstRow row_of(const ConstTensor& view, std::size_t row) {
  return {view.data() + row_offset(view, row) * size_of(view.dtype()), view.dtype()};
}
inline Row row_of(const Tensor& view, std::size_t row) {
  return {view.data() + row_offset(view, row) * size_of(view.dtype()), view.dtype()};
}

/// True if arithmetic may combine the types: f64 goes with f64, bf16 and f32 with each other.
inline bool mixes(DType a, DType b) { return a != DType::byte && b != DType::byte && (a == DType::f64) == (b == DType::f64); }

/// Complains unless the view has this shape, dense rows and a type that mixes with `like`.
inline void check_like(const char* kernel, const char* what, const ConstTensor& view, const ConstTensor& like) {
  require(same_shape(view, like) && dense_rows(view) && mixes(view.dtype(), like.dtype()), kernel, what, view);
}

}  // namespace tsprun::kernels
