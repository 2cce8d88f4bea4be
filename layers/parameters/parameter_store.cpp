// Allocates the packs, and moves parts between their memory and natural order.
#include "layers/parameters/parameter_store.h"

#include "core/kernels/check.h"
#include "core/kernels/finite.h"
#include "core/kernels/transpose.h"
#include "layers/parameters/init.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <stdexcept>

namespace tsprun::detail {

namespace {

/// Bytes of the pieces that all threads work on at a time: a thread's own stays in its second cache.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// Rows of the parameter that the pieces have which are worked on at a time.
std::size_t rows_at_a_time(const PartPlan& plan, const Tensor& tensor) {
  const std::size_t row_bytes = plan.block.columns * size_of(tensor.dtype());
  return std::clamp<std::size_t>(kPieceBytes / std::max<std::size_t>(row_bytes, 1), 1, std::max<std::size_t>(plan.block.rows, 1));
}

/// How many threads may work on a part at a time: each on so many bytes at least that waking it pays.
std::size_t lanes_of(Rank& rank, const PartPlan& plan, const Tensor& tensor) {
  constexpr std::size_t kLaneBytes = std::size_t{64} << 10;
  const std::size_t bytes = plan.block.rows * plan.block.columns * size_of(tensor.dtype());
  const std::size_t most = std::min(rows_at_a_time(plan, tensor), std::max<std::size_t>(bytes / kLaneBytes, 1));
  return std::min(rank.compute().threads(), most);
}

/// Calls body(piece of the parameter, the part of the tensor that holds it, lane) for pieces of whole rows, which `lanes` threads
/// take in turns, and ticks after each. So a file is read and written in its own order, and slow storage is no sign of a stalled
/// rank. Of a transposed part the tensor holds columns.
template <class Body>
void for_pieces(Rank& rank, const PartPlan& plan, const Tensor& tensor, std::size_t lanes, Body&& body) {
  std::size_t step = rows_at_a_time(plan, tensor) / lanes;
  if (constexpr std::size_t kRows = 32; plan.transposed && step > kRows) step -= step % kRows;  // of whole cache lines in memory
  rank.compute().run_tasks(lanes, [&](std::size_t lane, std::size_t thread) {
    for (std::size_t row = lane * step; row < plan.block.rows; row += lanes * step) {
      safetensors::Rectangle block = plan.block;
      block.first_row += row;
      block.rows = std::min(step, plan.block.rows - row);
      body(block, tensor.slice(plan.transposed ? 1 : 0, row, block.rows), lane);
      if (thread == 0) rank.tick();
    }
  });
}

/// Scratch of a part, of which each lane has some rows.
OwnedTensor scratch(Rank& rank, const PartPlan& plan, const Tensor& tensor) {
  return rank.tensor(Category::workspace, tensor.dtype(), {rows_at_a_time(plan, tensor), plan.block.columns},
                     "scratch of a transposed parameter");
}

}  // namespace

std::vector<PartPlan> held_parts(const PackPlan& pack) {
  if (!pack.cuts_weights) return pack.parts;
  std::vector<PartPlan> held;
  const std::vector<ElementRange> of_parts = states_held(pack, pack.sharer);
  for (std::size_t i = 0; i < of_parts.size(); ++i)
    std::ranges::copy(rectangles(pack.parts[i], of_parts[i]), std::back_inserter(held));
  return held;
}

std::vector<file::Range> ranges_to_load(const ModelFolder& weights, const std::vector<PackPlan>& packs) {
  std::vector<file::Range> ranges;
  for (const PackPlan& pack : packs) {
    for (const PartPlan& part : held_parts(pack)) ranges.push_back(weights.range_of(part.parameter.name, part.block));
  }
  return ranges;
}

ParameterStore::ParameterStore(Rank& rank, DType dtype, const std::vector<PackPlan>& packs, bool training)
    : rank_(rank), dtype_(dtype), training_(training) {
  std::size_t total = 0;
  std::size_t with_states = 0;
  std::vector<std::size_t> offsets;
  for (const PackPlan& pack : packs) {
    Pack& where = packs_.emplace_back(Pack{.plan = pack, .first_part = parts_.size(), .parts = 0, .offset = total});
    for (const ElementRange& of_part : states_held(pack, pack.sharer)) with_states += of_part.count;
    for (const PartPlan& plan : held_parts(pack)) {
      parts_.push_back({.plan = plan, .value = {}, .gradient = {}, .m = {}, .v = {}, .master = {}});
      offsets.push_back(total);
      total += plan.rows() * plan.width();
    }
    where.parts = parts_.size() - where.first_part;
    where.held = total - where.offset;
  }
  const DType sums = kernels::summed_in(dtype);
  values_ = rank.tensor(Category::parameters, dtype, {total}, "parameters");
  if (training) {
    gradients_ = rank.tensor(Category::gradients, sums, {total}, "gradients");
    m_ = rank.tensor(Category::optimizer, sums, {with_states}, "first moments");
    v_ = rank.tensor(Category::optimizer, sums, {with_states}, "second moments");
    if (keeps_master(dtype)) master_ = rank.tensor(Category::optimizer, sums, {with_states}, "master weights");
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    ParameterPart& part = parts_[i];
    const auto view = [&](const OwnedTensor& memory) {
      if (!memory.exists()) return Tensor();
      return memory->slice(0, offsets[i], part.plan.rows() * part.plan.width()).reshaped({part.plan.rows(), part.plan.width()});
    };
    part.value = view(values_);
    part.gradient = view(gradients_);
    if (shares_states()) continue;
    part.m = view(m_);
    part.v = view(v_);
    part.master = view(master_);
  }
  if (shares_states()) cut_states();
}

/// Lists the rectangles of the parts whose states the rank has, in the order in which these lie in memory.
void ParameterStore::cut_states() {
  std::size_t offset = 0;
  for (Pack& pack : packs_) {
    pack.first_state = states_.size();
    std::vector<ElementRange> held = states_held(pack.plan, pack.plan.sharer);
    if (pack.plan.cuts_weights) {  // all of what is here
      held.clear();
      for (const ParameterPart& part : parts().subspan(pack.first_part, pack.parts)) held.push_back({0, part.value.elements()});
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      const ParameterPart& part = parts_[pack.first_part + i];
      std::size_t at = held[i].first;
      for (const PartPlan& plan : rectangles(part.plan, held[i])) {
        const std::size_t rows = plan.rows();
        const std::size_t count = rows * plan.width();
        const auto view = [&](const Tensor& flat, std::size_t first) {
          return flat.slice(0, first, count).reshaped({rows, plan.width()});
        };
        const auto of_part = [&](const Tensor& whole) { return view(whole.reshaped({whole.elements()}), at); };
        const auto state = [&](const OwnedTensor& memory) { return memory.exists() ? view(memory, offset) : Tensor(); };
        states_.push_back({.plan = plan,
                           .value = of_part(part.value),
                           .gradient = of_part(part.gradient),
                           .m = state(m_),
                           .v = state(v_),
                           .master = state(master_)});
        at += count;
        offset += count;
      }
    }
    pack.states = states_.size() - pack.first_state;
  }
}

std::span<const ParameterPart> ParameterStore::states(std::size_t pack) const {
  const Pack& where = packs_.at(pack);
  return shares_states() ? states().subspan(where.first_state, where.states) : parts().subspan(where.first_part, where.parts);
}

Tensor ParameterStore::stacked(const OwnedTensor& memory, std::size_t pack, std::size_t first, std::size_t count) const {
  const Pack& where = packs_.at(pack);
  if (where.plan.cuts_weights) throw std::logic_error("rows of a pack that is cut over replicas");
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

bool ParameterStore::load(const ModelFolder& weights, file::ReadAhead* ahead) {
  std::atomic<bool> finite = true;
  const Source read = [&](const PartPlan& plan, const safetensors::Rectangle& block, Buffer into) {
    weights.read(plan.parameter.name, block, into);
    if (ahead != nullptr) ahead->passed(weights.range_of(plan.parameter.name, block).bytes);
    if (kernels::first_not_finite(ConstTensor(into.data, into.dtype, {into.count}))) finite = false;
  };
  fill(read);
  // The file may have more digits than the values can hold.
  if (master_.exists()) {
    for (const ParameterPart& part : states()) fill_part(part, part.master, read);
  }
  return finite;
}

void ParameterStore::begin_optimizer() {
  if (!training_) return;
  rank_.compute().fill_zero(m_);
  rank_.compute().fill_zero(v_);
  if (!master_.exists()) return;
  for (const ParameterPart& part : states()) rank_.compute().convert(part.master, part.value);
}

void for_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                        const std::function<void(const safetensors::Rectangle&, ConstBuffer)>& body) {
  if (plan.rows() * plan.width() == 0) return;
  OwnedTensor turned;
  if (plan.transposed) turned = scratch(rank, plan, tensor);
  if (rank.is_phantom()) return;
  for_pieces(rank, plan, tensor, 1, [&](const safetensors::Rectangle& block, const Tensor& piece, std::size_t) {
    if (!plan.transposed) return body(block, buffer_of(ConstTensor(piece)));
    const Tensor natural = turned->slice(0, 0, block.rows);
    kernels::transpose(natural, piece);
    body(block, buffer_of(ConstTensor(natural)));
  });
}

void fill_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                         const std::function<void(const safetensors::Rectangle&, Buffer)>& body) {
  if (plan.rows() * plan.width() == 0) return;
  OwnedTensor turned;
  if (plan.transposed) turned = scratch(rank, plan, tensor);
  if (rank.is_phantom()) return;
  const std::size_t lanes = lanes_of(rank, plan, tensor);
  for_pieces(rank, plan, tensor, lanes, [&](const safetensors::Rectangle& block, const Tensor& piece, std::size_t lane) {
    if (!plan.transposed) return body(block, buffer_of(piece));
    const std::size_t rows = turned->size(0) / lanes;
    const Tensor natural = turned->slice(0, lane * rows, block.rows);
    body(block, buffer_of(natural));
    kernels::transpose(piece, natural);
  });
}

}  // namespace tsprun::detail
