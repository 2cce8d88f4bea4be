// Allocates the packs, and moves parts between their memory and natural order.
#include "layers/parameters/parameter_store.h"

#include "core/kernels/check.h"
#include "layers/parameters/init.h"

#include <algorithm>
#include <cstring>

namespace tsprun::detail {

namespace {

constexpr std::size_t kPieceBytes = 256 * 1024;

/// Copies to[j, i] = from[i, j] for contiguous elements of any type.
void transpose(std::byte* to, const std::byte* from, std::size_t rows, std::size_t columns, std::size_t element) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j)
      std::memcpy(to + (j * rows + i) * element, from + (i * columns + j) * element, element);
  }
}

/// Calls body for pieces of a part, each some of its rows in memory. A piece of a transposed part is some columns of the
/// parameter.
template <class Body>
void for_pieces(const PartPlan& plan, const Tensor& tensor, Body&& body) {
  const std::size_t row_bytes = plan.width() * size_of(tensor.dtype());
  const std::size_t step =
      plan.transposed ? std::max<std::size_t>(1, kPieceBytes / std::max<std::size_t>(row_bytes, 1)) : plan.rows();
  for (std::size_t row = 0; row < plan.rows(); row += step) {
    const std::size_t count = std::min(step, plan.rows() - row);
    safetensors::Rectangle block = plan.block;
    if (plan.transposed) {
      block.first_column += row;
      block.columns = count;
    } else {
      block.first_row += row;
      block.rows = count;
    }
    body(block, tensor.slice(0, row, count));
  }
}

OwnedTensor scratch(Rank& rank, const PartPlan& plan, const Tensor& tensor) {
  const std::size_t row_bytes = std::max<std::size_t>(plan.width() * size_of(tensor.dtype()), 1);
  const std::size_t rows = std::min(plan.rows(), std::max<std::size_t>(1, kPieceBytes / row_bytes));
  return rank.tensor(Category::workspace, tensor.dtype(), {rows, plan.width()}, "scratch of a transposed parameter");
}

}  // namespace

ParameterStore::ParameterStore(Rank& rank, DType dtype, const std::vector<PackPlan>& packs, bool training)
    : rank_(rank), dtype_(dtype), training_(training) {
  std::size_t total = 0;
  std::vector<std::size_t> offsets;
  for (const PackPlan& pack : packs) {
    packs_.push_back({.first_part = parts_.size(), .parts = pack.parts.size(), .offset = total});
    for (const PartPlan& plan : pack.parts) {
      parts_.push_back({.plan = plan, .value = {}, .gradient = {}, .m = {}, .v = {}, .master = {}});
      offsets.push_back(total);
      total += plan.rows() * plan.width();
    }
  }
  const DType sums = kernels::summed_in(dtype);
  values_ = rank.tensor(Category::parameters, dtype, {total}, "parameters");
  if (training) {
    gradients_ = rank.tensor(Category::gradients, sums, {total}, "gradients");
    m_ = rank.tensor(Category::optimizer, sums, {total}, "first moments");
    v_ = rank.tensor(Category::optimizer, sums, {total}, "second moments");
    if (sums != dtype) master_ = rank.tensor(Category::optimizer, sums, {total}, "master weights");
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    ParameterPart& part = parts_[i];
    const auto view = [&](const OwnedTensor& memory) {
      if (!memory.exists()) return Tensor();
      return memory->slice(0, offsets[i], part.plan.rows() * part.plan.width()).reshaped({part.plan.rows(), part.plan.width()});
    };
    part.value = view(values_);
    part.gradient = view(gradients_);
    part.m = view(m_);
    part.v = view(v_);
    part.master = view(master_);
  }
}

Tensor ParameterStore::stacked(const OwnedTensor& memory, std::size_t pack, std::size_t first, std::size_t count) const {
  const Pack& where = packs_.at(pack);
  std::size_t offset = where.offset;
  std::size_t rows = 0;
  const std::size_t width = parts_[where.first_part].plan.width();
  for (std::size_t i = 0; i < first + count; ++i) {
    const std::size_t part_rows = parts_[where.first_part + i].plan.rows();
    if (i < first) offset += part_rows * width;
    else rows += part_rows;
  }
  return memory->slice(0, offset, rows * width).reshaped({rows, width});
}

void ParameterStore::fill(const Source& source) {
  for (const ParameterPart& part : parts_) fill_part(part, part.value, source);
  begin_optimizer();
}

void ParameterStore::fill_part(const ParameterPart& part, const Tensor& tensor, const Source& source) {
  fill_natural_blocks(rank_, part.plan, tensor,
                      [&](const safetensors::Rectangle& block, Buffer into) { source(part.plan, block, into); });
}

void ParameterStore::fill_fresh(std::size_t layers, std::uint64_t seed) {
  fill([&](const PartPlan& plan, const safetensors::Rectangle& block, Buffer into) {
    tsprun::detail::fill_fresh(plan.parameter, layers, seed, block, into);
  });
}

void ParameterStore::load(const ModelFolder& weights) {
  const Source read = [&](const PartPlan& plan, const safetensors::Rectangle& block, Buffer into) {
    weights.read(plan.parameter.name, block, into);
  };
  fill(read);
  // The file may have more digits than the values can hold.
  if (!master_.exists()) return;
  for (const ParameterPart& part : parts_) fill_part(part, part.master, read);
}

void ParameterStore::begin_optimizer() {
  if (!training_) return;
  rank_.compute().fill_zero(m_);
  rank_.compute().fill_zero(v_);
  if (master_.exists()) rank_.compute().convert(master_, values_);
}

void for_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                        const std::function<void(const safetensors::Rectangle&, ConstBuffer)>& body) {
  if (plan.rows() * plan.width() == 0) return;
  OwnedTensor turned;
  if (plan.transposed) turned = scratch(rank, plan, tensor);
  for_pieces(plan, tensor, [&](const safetensors::Rectangle& block, const Tensor& piece) {
    if (!plan.transposed) return body(block, buffer_of(ConstTensor(piece)));
    transpose(turned->data(), piece.data(), piece.size(0), piece.size(1), size_of(piece.dtype()));
    body(block, ConstBuffer(turned->data(), piece.elements(), piece.dtype()));
    rank.tick();
  });
}

void fill_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                         const std::function<void(const safetensors::Rectangle&, Buffer)>& body) {
  if (plan.rows() * plan.width() == 0) return;
  OwnedTensor turned;
  if (plan.transposed) turned = scratch(rank, plan, tensor);
  if (rank.is_phantom()) return;
  for_pieces(plan, tensor, [&](const safetensors::Rectangle& block, const Tensor& piece) {
    if (!plan.transposed) {
      body(block, buffer_of(piece));
      rank.tick();
      return;
    }
    body(block, Buffer(turned->data(), piece.elements(), piece.dtype()));
    transpose(piece.data(), turned->data(), piece.size(1), piece.size(0), size_of(piece.dtype()));
    rank.tick();
  });
}

}  // namespace tsprun::detail
