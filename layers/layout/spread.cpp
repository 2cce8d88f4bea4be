// Names of axes and variants, degrees and strides of a layout, and the check that refuses impossible ones.
#include "layers/layout/spread.h"

#include "layers/layout/check_mesh.h"
#include "transport/cause.h"

#include <fmt/format.h>

namespace tsprun::theory {

std::string_view name(AxisKind kind) {
  switch (kind) {
    case AxisKind::dp: return "dp";
    case AxisKind::tp: return "tp";
    case AxisKind::sp: return "sp";
    case AxisKind::tsp: return "tsp";
    case AxisKind::zero3: return "zero3";
  }
  return "";
}

std::optional<AxisKind> axis_kind(std::string_view name) {
  for (const AxisKind kind : kAxisKinds) {
    if (theory::name(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string_view name(TensorExchange exchange) { return exchange == TensorExchange::plain ? "plain" : "sequence"; }

std::string_view name(SequenceExchange exchange) {
  switch (exchange) {
    case SequenceExchange::gather: return "gather";
    case SequenceExchange::ring: return "ring";
    case SequenceExchange::ulysses: return "ulysses";
  }
  return "";
}

int Spread::degree(AxisKind kind) const {
  int degree = 1;
  for (const Axis& axis : axes) {
    if (axis.kind == kind) degree *= axis.degree;
  }
  return degree;
}

int Spread::ranks() const {
  int product = 1;
  for (const Axis& axis : axes) product *= axis.degree;
  return product;
}

int Spread::stride(AxisKind kind) const {
  int stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend() && axis->kind != kind; ++axis) stride *= axis->degree;
  return stride;
}

int Spread::token_ranks() const { return degree(AxisKind::sp) * degree(AxisKind::tsp) * degree(AxisKind::zero3); }

int Spread::vocabulary_ranks() const {
  if (tensors() == 1) return token_ranks();
  return cuts_kept_tokens() ? tensors() * token_ranks() : tensors();
}

std::string Spread::print() const {
  std::string text;
  for (const Axis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name(axis.kind), axis.degree);
  return text.empty() ? "1" : text;
}

std::string Spread::label() const {
  std::string variants;
  if (tensor != TensorExchange::plain && tensors() > 1) variants = name(tensor);
  if (sequence != SequenceExchange::gather && degree(AxisKind::sp) > 1) {
    variants += fmt::format("{}{}", variants.empty() ? "" : ", ", name(sequence));
  }
  return variants.empty() ? print() : fmt::format("{} ({})", print(), variants);
}

std::string why_impossible(const Setting& setting, const Spread& spread) {
  const int data = spread.data();
  if (setting.batch % static_cast<std::size_t>(data) != 0) {
    return fmt::format("dp={} doesn't divide --batch {}; try --batch {}", data, setting.batch,
                       (setting.batch / static_cast<std::size_t>(data) + 1) * static_cast<std::size_t>(data));
  }
  try {
    check_mesh(setting.model, mesh_shape(spread), spread.sequence);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

MeshShape mesh_shape(const Spread& spread) {
  const int token_axes =
      static_cast<int>(spread.degree(AxisKind::sp) > 1) + static_cast<int>(spread.folded()) + static_cast<int>(spread.zero3());
  if (token_axes > 1 || (spread.zero3() && spread.tensors() > 1)) {
    throw Error(
        Cause::refused,
        fmt::format("{}: no mesh has these axes together; sp, tsp and zero3 exclude each other, and zero3 tp", spread.print()));
  }
  MeshShape shape;
  shape.data = spread.data();
  shape.tensor = spread.tensors();
  shape.sequence = spread.token_ranks();
  if (spread.zero3()) shape.scheme = Scheme::zero3;
  else if (!spread.folded() && shape.tensor * shape.sequence > 1) shape.scheme = Scheme::dense;
  // The axis with the larger stride is the outer one.
  const AxisKind tokens = spread.folded() ? AxisKind::tsp : spread.zero3() ? AxisKind::zero3 : AxisKind::sp;
  shape.sequence_outside = shape.sequence > 1 && shape.tensor > 1 && spread.stride(tokens) > spread.stride(AxisKind::tp);
  shape.exchange = spread.cuts_kept_tokens() ? TensorExchange::sequence : TensorExchange::plain;
  return shape;
}

}  // namespace tsprun::theory
