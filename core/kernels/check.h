// Helpers with which kernels check and walk their views: errors about views that don't fit (a programmer's error, hence
// std::invalid_argument), and the offsets of rows.
#pragma once

#include "core/tensor/tensor.h"

#include <stdexcept>
#include <string>

namespace tsprun::detail::kernels {

/// Throws std::invalid_argument("<kernel>: <what>, not <description of view>") unless `holds` is true.
inline void require(bool holds, const char* kernel, const char* what, const ConstTensor& view) {
  if (!holds) throw std::invalid_argument(std::string(kernel) + ": " + what + ", not " + view.describe());
}

/// Returns whether the elements along the last dim are adjacent in memory. False for a view without dims.
inline bool dense_rows(const ConstTensor& view) {
  if (view.dims() == 0) return false;
  const std::size_t last = view.dims() - 1;
  return view.size(last) <= 1 || view.stride(last) == 1;
}

/// Returns the dtype in which sums of `dtype` are kept ("the type of sums" in other comments): f32 for bf16, otherwise `dtype`
/// itself.
constexpr DType summed_in(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

/// Returns the number of rows: the product of all dims but the last.
inline std::size_t row_count(const ConstTensor& view) {
  std::size_t rows = view.dims() == 0 ? 0 : 1;
  for (std::size_t i = 0; i + 1 < view.dims(); ++i) rows *= view.size(i);
  return rows;
}

/// Returns the distance in elements from the view's first element to row `row`. Rows are counted in row-major order over all dims
/// but the last. The view must have at least one dim.
inline std::size_t row_offset(const ConstTensor& view, std::size_t row) {
  std::size_t offset = 0;
  for (std::size_t i = view.dims() - 1; i-- > 0;) {
    offset += row % view.size(i) * view.stride(i);
    row /= view.size(i);
  }
  return offset;
}

/// Row of a view whose dtype is known only at run time: its first element and dtype. Row can be written, ConstRow can't.
struct ConstRow {
  const std::byte* data = nullptr;
  DType dtype = DType::byte;
};
struct Row {
  std::byte* data = nullptr;
  DType dtype = DType::byte;
  operator ConstRow() const { return {data, dtype}; }
};
/// Returns row `row` of a view, counted as in row_offset().
inline ConstRow row_of(const ConstTensor& view, std::size_t row) {
  return {view.data() + row_offset(view, row) * size_of(view.dtype()), view.dtype()};
}
inline Row row_of(const Tensor& view, std::size_t row) {
  return {view.data() + row_offset(view, row) * size_of(view.dtype()), view.dtype()};
}

/// Returns element `i` of a row of a float type.
template <class T>
T element(const ConstRow& row, std::size_t i) {
  switch (row.dtype) {
    case DType::f64: return static_cast<T>(reinterpret_cast<const double*>(row.data)[i]);
    case DType::bf16: return static_cast<T>(static_cast<float>(reinterpret_cast<const bf16*>(row.data)[i]));
    default: return static_cast<T>(reinterpret_cast<const float*>(row.data)[i]);
  }
}

/// Writes element `i` of a row of a float type, rounded to it.
inline void set_element(const Row& row, std::size_t i, double value) {
  switch (row.dtype) {
    case DType::f64: reinterpret_cast<double*>(row.data)[i] = value; break;
    case DType::bf16: reinterpret_cast<bf16*>(row.data)[i] = bf16(static_cast<float>(value)); break;
    default: reinterpret_cast<float*>(row.data)[i] = static_cast<float>(value); break;
  }
}

/// Returns whether one operation may combine the two dtypes: bf16 and f32 with each other, f64 only with f64.
inline bool mixes(DType a, DType b) { return computes(a) && computes(b) && (a == DType::f64) == (b == DType::f64); }

/// Throws std::invalid_argument unless `view` has the shape of `like`, dense rows, and a dtype that may be mixed with `like`'s.
inline void check_like(const char* kernel, const char* what, const ConstTensor& view, const ConstTensor& like) {
  require(same_shape(view, like) && dense_rows(view) && mixes(view.dtype(), like.dtype()), kernel, what, view);
}

}  // namespace tsprun::detail::kernels
