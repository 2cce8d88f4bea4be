// Tensors of torch as buffers of a communicator: checks as gloo makes them, element types, and copies where a call's tensors
// don't lie in one piece.
#pragma once

#include "process_group.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::torch_binding {

inline std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * static_cast<std::size_t>(tensor.element_size());
}

/// Returns the element type of a tensor. A complex number travels as two real ones; types without arithmetic here as bytes.
inline DType dtype_of(const at::Tensor& tensor) {
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kChar: return DType::i8;
    case at::kByte: return DType::u8;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kBool: return DType::boolean;
    default: return DType::byte;
  }
}

/// Returns the tensor in one piece, with its elements as they lie in memory: a conjugate or negative view has them otherwise.
inline at::Tensor plain(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous(); }

inline bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

/// Returns a plain tensor's elements.
inline Buffer view(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(is_plain(tensor));
  const DType dtype = dtype_of(tensor);
  return {tensor.data_ptr(), bytes_of(tensor) / size_of(dtype), dtype};
}

inline void check_place(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu(), call, ": tsprun moves tensors in host memory, this one is on ", tensor.device(),
              "; .cpu() copies it");
}

inline void check(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), call, ": a tensor is undefined");
  TORCH_CHECK(tensor.layout() == at::kStrided, call, ": tsprun takes dense tensors, not ", tensor.layout(),
              " ones; .to_dense() makes one, and all_reduce adds up Sparse ones");
  check_place(call, tensor);
}

inline const at::Tensor& only(const char* call, const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, call, ": needs one tensor as ", what, ", got ", tensors.size());
  check(call, tensors.front());
  return tensors.front();
}

inline const Tensors& only_list(const char* call, const char* what, const std::vector<Tensors>& lists, int size) {
  TORCH_CHECK(lists.size() == 1, call, ": needs one list of tensors as ", what, ", got ", lists.size());
  TORCH_CHECK(lists.front().size() == static_cast<std::size_t>(size), call, ": the list of ", what,
              " needs a tensor for each of ", size, " ranks, and has ", lists.front().size());
  for (const at::Tensor& tensor : lists.front()) check(call, tensor);
  return lists.front();
}

/// Refuses the tags that have a meaning of their own in a communicator (kNoTag, kAnyTag), and all others that aren't ones.
inline void check_tag(const char* call, int tag) { TORCH_CHECK(tag >= 0, call, ": a message's tag is 0 or more, not ", tag); }

inline void check_alike(const char* call, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.scalar_type() == other.scalar_type(), call, ": tensors of one type are needed, got ", one.scalar_type(),
              " and ", other.scalar_type());
}

/// Checks that all tensors of a list have the type and the number of elements of `like`.
inline void check_list(const char* call, const Tensors& list, const at::Tensor& like) {
  for (const at::Tensor& tensor : list) {
    check_alike(call, tensor, like);
    TORCH_CHECK(tensor.sizes() == like.sizes(), call, ": tensors of one size are needed, got ", tensor.sizes(), " and ",
                like.sizes());
  }
}

inline Reduction reduction_of(const char* call, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const auto chosen = [&]() -> std::optional<Reduction> {
    switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
      case c10d::ReduceOp::SUM: return Reduction::sum;
      case c10d::ReduceOp::AVG: return Reduction::average;
      case c10d::ReduceOp::PRODUCT: return Reduction::product;
      case c10d::ReduceOp::MIN: return Reduction::min;
      case c10d::ReduceOp::MAX: return Reduction::max;
      case c10d::ReduceOp::BAND: return Reduction::bit_and;
      case c10d::ReduceOp::BOR: return Reduction::bit_or;
      case c10d::ReduceOp::BXOR: return Reduction::bit_xor;
      default: return std::nullopt;
    }
  }();
  TORCH_CHECK(chosen, call, ": tsprun has no premultiplied sum");
  TORCH_CHECK(!tensor.is_complex() || *chosen == Reduction::sum || *chosen == Reduction::average, call, ": complex numbers (",
              tensor.scalar_type(), ") are reduced by SUM and AVG alone, not by ", std::string(name(*chosen)),
              "; torch.view_as_real() gives their parts, which are reduced each by itself");
  TORCH_CHECK(reduces(*chosen, dtype_of(tensor)), call, ": tensors of type ", tensor.scalar_type(), " can't be reduced by ",
              std::string(name(*chosen)));
  return *chosen;
}

/// The memory of a result: the tensor itself, or, if that isn't plain, a copy that finish()'s function copies back.
class Result {
 public:
  explicit Result(at::Tensor tensor, bool is_input = true)
      : tensor_(std::move(tensor)),
        memory_(is_plain(tensor_) ? tensor_
                : is_input        ? plain(tensor_)
                                  : at::empty(tensor_.sizes(), tensor_.options())) {}
  const at::Tensor& memory() const { return memory_; }
  /// Returns what is to be done after the operation; empty: nothing.
  std::function<void()> finish() const {
    if (memory_.is_same(tensor_)) return {};
    return [copy = *this] { copy.tensor_.copy_(copy.memory_); };
  }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

inline at::Tensor joined(const Tensors& tensors) {
  Tensors flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(plain(tensor).reshape({-1}));
  return at::cat(flat);
}

inline at::Tensor room_for(const Tensors& tensors) {
  std::int64_t all = 0;
  for (const at::Tensor& tensor : tensors) all += tensor.numel();
  return at::empty({all}, tensors.front().options().memory_format(at::MemoryFormat::Contiguous));
}

/// Copies consecutive parts of `flat` to the tensors.
inline void spread(const at::Tensor& flat, const Tensors& tensors) {
  std::int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

/// Checks lists of tensors of which each in `wholes` has a part for each of `size` ranks, as large as its fellow in `parts`.
inline void check_parts(const char* call, const char* whole, const Tensors& wholes, const char* part, const Tensors& parts,
                        int size) {
  TORCH_CHECK(!wholes.empty() && wholes.size() == parts.size(), call, ": needs as many ", whole, " as ", part,
              " tensors, and at least one, got ", wholes.size(), " and ", parts.size());
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    check(call, wholes[i]);
    check(call, parts[i]);
    check_alike(call, wholes[i], parts[i]);
    TORCH_CHECK(wholes[i].numel() == parts[i].numel() * size, call, ": ", whole, " tensor ", i, " has ", wholes[i].numel(),
                " elements, ", part, " tensor ", i, " ", parts[i].numel(), ": needed are ", size,
                " times as many, one part a rank");
  }
}

/// Returns each rank's part of a tensor, as a tensor of `sizes`: views, unless the tensor isn't contiguous.
inline Tensors parts_of(const at::Tensor& whole, at::IntArrayRef sizes, int size) {
  Tensors parts;
  for (const at::Tensor& part : whole.reshape({size, whole.numel() / size}).unbind(0)) parts.push_back(part.view(sizes));
  return parts;
}

/// Returns how many elements (of the type in which they travel) each tensor has.
inline std::vector<std::size_t> counts_of(const Tensors& tensors) {
  std::vector<std::size_t> counts;
  counts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    counts.push_back(bytes_of(tensor) / size_of(dtype_of(tensor)));
  }
  return counts;
}

inline bool all_equal(const std::vector<std::size_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts.front(); });
}

/// Returns the elements that each rank sends or receives in an alltoall_base: `splits` are parts of dimension 0; none: equal
/// ones.
inline std::vector<std::size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                             int size) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> parts = splits;
  if (parts.empty()) {
    TORCH_CHECK(rows % size == 0, "all_to_all_single: the ", what, "'s first dimension, ", rows,
                ", can't be divided evenly by the ", size,
                " ranks of the group: Tensor's dim 0 does not divide equally across group size");
    parts.assign(static_cast<std::size_t>(size), rows / size);
  }
  TORCH_CHECK(parts.size() == static_cast<std::size_t>(size),
              "all_to_all_single: Number of tensor splits not equal to group size: ", parts.size(), " and ", size, " (", what,
              ")");
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) sum += part;
  TORCH_CHECK(sum == rows, "all_to_all_single: Split sizes doesn't match total dim 0 size: ", sum, " and ", rows, " (", what,
              ")");
  const std::size_t row = rows == 0 ? 0 : bytes_of(tensor) / static_cast<std::size_t>(rows) / size_of(dtype_of(tensor));
  std::vector<std::size_t> counts;
  for (const std::int64_t part : parts) counts.push_back(static_cast<std::size_t>(part) * row);
  return counts;
}

}  // namespace tsprun::torch_binding
