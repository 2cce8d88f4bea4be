// Runs kernels with workspace, ticks, timing and trace, and counts the FLOPs of gemm and attention.
#include "core/rank/compute_stream.h"

#include "core/kernels/visible_pairs.h"
#include "core/program/recorder.h"
#include "core/trace/recorder.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns the FLOPs of a forward pass: for each visible pair 2·d for q·kᵀ and 2·d for p·v.
double attention_flops(const kernels::Attention& attention, const ConstTensor& q, const ConstTensor& k) {
  const double pairs = kernels::visible_pairs(attention.mask, q.size(0), q.size(1), k.size(1));
  return 4 * pairs * static_cast<double>(q.size(2) * q.size(3));
}

/// Returns batch, queries, keys, heads and elements of a head.
std::array<std::uint64_t, 5> attention_sizes(const ConstTensor& q, const ConstTensor& k) {
  return {q.size(0), q.size(1), k.size(1), q.size(2), q.size(3)};
}

/// Returns the bytes of the elements of all tensors.
template <class... Tensors>
std::uint64_t bytes_of(const Tensors&... tensors) {
  return (std::uint64_t{0} + ... + tensors.bytes());
}

std::uint64_t bytes_of_parts(std::span<const ConstTensor> parts) {
  std::uint64_t sum = 0;
  for (const ConstTensor& part : parts) sum += part.bytes();
  return sum;
}

/// Returns the bytes that a kernel reads of its results because it adds to them.
template <class... Tensors>
std::uint64_t added_to(kernels::Write write, const Tensors&... results) {
  return write == kernels::Write::add ? bytes_of(results...) : 0;
}

/// Returns the cost of a kernel without products: its sizes are those of `of`.
KernelCost touches(std::string_view kernel, const ConstTensor& input, const ConstTensor& result, const ConstTensor& of,
                   std::uint64_t read, std::uint64_t written) {
  KernelCost cost{
      .kernel = kernel, .dtype = input.dtype(), .result = result.dtype(), .bytes_read = read, .bytes_written = written};
  for (std::size_t i = 0; i < std::min(of.dims(), cost.sizes.size()); ++i) cost.sizes[i] = of.size(i);
  return cost;
}

}  // namespace

ComputeStream::ComputeStream(Engine& engine, Heap& heap, std::size_t threads, TraceRecorder* trace, Recorder* recorder)
    : engine_(engine),
      heap_(heap),
      threads_(threads),
      pool_(engine.options().phantom && (recorder == nullptr || !recorder->runs_kernels()) ? 1 : threads,
            threads <= engine.options().cores ? kernels::Idle::spin : kernels::Idle::sleep),
      trace_(trace),
      recorder_(recorder) {}

std::span<std::byte> ComputeStream::workspace(std::size_t bytes) {
  if (workspace_.bytes().size() < bytes) {
    workspace_.reset();
    workspace_ = heap_.allocate(bytes, "workspace of kernels", Category::workspace);
    if (recorder_ != nullptr) recorder_->take(workspace_.bytes(), Category::workspace);
  }
  return workspace_.bytes();
}

void ComputeStream::tick() {
  ++ticks_;
  if (engine_.idle()) {
    engine_.tick();
    return;
  }
  const std::uint64_t begin = engine_.clock().now_ns();
  engine_.tick();
  tick_ns_ += engine_.clock().now_ns() - begin;
}

void ComputeStream::run_tasks(std::size_t count, kernels::Pool::Task task) {
  pool_.run(count, task, [this] { engine_.tick(); });
}

template <class Kernel>
void ComputeStream::run(const KernelCost& cost, std::size_t bytes, Kernel&& kernel) {
  const std::span<std::byte> room = workspace(bytes);
  if (recorder_ != nullptr) recorder_->kernel(cost);
  flops_ += cost.flops;
  const bool timed = recorder_ != nullptr && recorder_->runs_kernels();
  if (engine_.options().phantom && !timed) return;
  const auto tick_of_this = [this] { tick(); };
  const kernels::Compute on{.pool = &pool_, .workspace = room, .tick = tick_of_this};
  const std::uint64_t ticks = ticks_;
  const std::uint64_t ticked_ns = tick_ns_;
  const std::uint64_t begin = engine_.clock().now_ns();
  kernel(on);
  const std::uint64_t end = engine_.clock().now_ns();
  kernel_ns_ += end - begin;
  if (timed) recorder_->kernel_took({.ns = end - begin - (tick_ns_ - ticked_ns), .ticks = ticks_ - ticks});
  if (trace_ != nullptr)
    trace_->add({.begin_ns = begin,
                 .end_ns = end,
                 .name = cost.kernel,
                 .flops = cost.flops,
                 .bytes = cost.bytes_read + cost.bytes_written,
                 .matrix = cost.matrix,
                 .sizes = cost.traced_sizes()});
}

void ComputeStream::gemm(std::string_view matrix, const Tensor& c, const ConstTensor& a, const ConstTensor& b,
                         kernels::Write write) {
  const std::size_t m = a.size(0);
  const std::size_t n = b.size(1);
  const std::size_t k = a.size(1);
  run({.kernel = "gemm",
       .matrix = matrix,
       .dtype = size_of(b.dtype()) < size_of(a.dtype()) ? b.dtype() : a.dtype(),
       .result = c.dtype(),
       .sizes = {m, n, k},
       .flops = 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n),
       .bytes_read = bytes_of(a, b) + added_to(write, c),
       .bytes_written = bytes_of(c)},
      kernels::gemm_workspace(c, a, b, threads()), [&](const kernels::Compute& on) { kernels::gemm(on, c, a, b, write); });
}

void ComputeStream::flash_forward(const kernels::Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                                  const ConstTensor& k, const ConstTensor& v) {
  run({.kernel = "flash forward",
       .dtype = q.dtype(),
       .result = o.dtype(),
       .sizes = attention_sizes(q, k),
       .flops = attention_flops(attention, q, k),
       .bytes_read = bytes_of(q, k, v),
       .bytes_written = bytes_of(o, lse)},
      kernels::flash_forward_workspace(q.dtype(), q.size(3), threads()),
      [&](const kernels::Compute& on) { kernels::flash_forward(on, attention, o, lse, q, k, v); });
}

void ComputeStream::flash_delta(const Tensor& delta, const ConstTensor& d_o, const ConstTensor& o) {
  run(touches("flash delta", d_o, delta, d_o, bytes_of(d_o, o), bytes_of(delta)), 0,
      [&](const kernels::Compute& on) { kernels::flash_delta(on, delta, d_o, o); });
}

void ComputeStream::flash_backward(const kernels::Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                   const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                                   const ConstTensor& k, const ConstTensor& v, kernels::Write write) {
  run({.kernel = "flash backward",
       .dtype = q.dtype(),
       .result = dq.dtype(),
       .sizes = attention_sizes(q, k),
       .flops = 2.5 * attention_flops(attention, q, k),
       .bytes_read = bytes_of(d_o, lse, delta, q, k, v) + added_to(write, dq, dk, dv),
       .bytes_written = bytes_of(dq, dk, dv)},
      kernels::flash_backward_workspace(q.dtype(), q.size(3), threads()),
      [&](const kernels::Compute& on) { kernels::flash_backward(on, attention, dq, dk, dv, d_o, lse, delta, q, k, v, write); });
}

void ComputeStream::merge_attention(double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                                    std::span<const ConstTensor> part_lse) {
  run(touches("merge attention", part_o.front(), o, o, bytes_of_parts(part_o) + bytes_of_parts(part_lse), bytes_of(o, lse)), 0,
      [&](const kernels::Compute& on) { kernels::merge_attention(on, scale, o, lse, part_o, part_lse); });
}

void ComputeStream::round_lse(double scale, const Tensor& one, const ConstTensor& two) {
  run(touches("round log-sum-exp", two, one, one, bytes_of(two), bytes_of(one)), 0,
      [&](const kernels::Compute&) { kernels::round_lse(scale, one, two); });
}

bool ComputeStream::has_lost_lse(const ConstTensor& lse, const ConstTensor& o) const {
  return !engine_.options().phantom && kernels::has_lost_lse(lse, o);
}

void ComputeStream::rms_norm(const Tensor& y, const ConstTensor& x, const ConstTensor& gain, double epsilon,
                             const kernels::NormForm& form, const kernels::WholeRows& whole) {
  run(touches("norm", x, y, y, bytes_of(x, gain, whole.squares), bytes_of(y)), 0,
      [&](const kernels::Compute& on) { kernels::rms_norm(on, y, x, gain, epsilon, form, whole); });
}

void ComputeStream::rms_norm_backward(const Tensor& dx, const Tensor& dgain, const ConstTensor& dy, const ConstTensor& x,
                                      const ConstTensor& gain, double epsilon, kernels::Write write,
                                      const kernels::NormForm& form, const kernels::WholeRows& whole) {
  run(touches("norm backward", dy, dx, dx, bytes_of(dy, x, gain, dgain, whole.squares, whole.products) + added_to(write, dx),
              bytes_of(dx, dgain)),
      kernels::norm_backward_workspace(),
      [&](const kernels::Compute& on) { kernels::rms_norm_backward(on, dx, dgain, dy, x, gain, epsilon, write, form, whole); });
}

void ComputeStream::row_sums(const Tensor& sums, const ConstTensor& x, const ConstTensor& dy, const ConstTensor& gain,
                             const kernels::NormForm& form) {
  run(touches("row sums", x, sums, x, bytes_of(x, dy, gain), bytes_of(sums)), 0,
      [&](const kernels::Compute& on) { kernels::row_sums(on, sums, x, dy, gain, form); });
}

void ComputeStream::layer_norm(const Tensor& y, const ConstTensor& x, const ConstTensor& gain, const ConstTensor& bias,
                               double epsilon, const kernels::NormForm& form) {
  run(touches("norm", x, y, y, bytes_of(x, gain, bias), bytes_of(y)), 0,
      [&](const kernels::Compute& on) { kernels::layer_norm(on, y, x, gain, bias, epsilon, form); });
}

void ComputeStream::layer_norm_backward(const Tensor& dx, const Tensor& dgain, const Tensor& dbias, const ConstTensor& dy,
                                        const ConstTensor& x, const ConstTensor& gain, double epsilon, kernels::Write write,
                                        const kernels::NormForm& form) {
  run(touches("norm backward", dy, dx, dx, bytes_of(dy, x, gain, dgain, dbias) + added_to(write, dx), bytes_of(dx, dgain, dbias)),
      kernels::norm_backward_workspace(),
      [&](const kernels::Compute& on) { kernels::layer_norm_backward(on, dx, dgain, dbias, dy, x, gain, epsilon, write, form); });
}

void ComputeStream::add_bias(const Tensor& x, const ConstTensor& bias) {
  run(touches("bias", bias, x, x, bytes_of(x, bias), bytes_of(x)), 0,
      [&](const kernels::Compute& on) { kernels::add_bias(on, x, bias); });
}

void ComputeStream::bias_backward(const Tensor& dbias, const ConstTensor& dy) {
  run(touches("bias backward", dy, dbias, dy, bytes_of(dy, dbias), bytes_of(dbias)), 0,
      [&](const kernels::Compute& on) { kernels::bias_backward(on, dbias, dy); });
}

void ComputeStream::rope_table(const Tensor& table, std::span<const std::int64_t> positions, std::span<const double> frequencies,
                               std::span<const double> factors) {
  run(touches("rope table", table, table, table, 0, bytes_of(table)), 0,
      [&](const kernels::Compute& on) { kernels::rope_table(on, table, positions, frequencies, factors); });
}

void ComputeStream::rope(const Tensor& x, const ConstTensor& table, kernels::Rotation rotation, kernels::RotaryPairs pairs,
                         std::span<const std::uint32_t> rows) {
  run(touches("rope", x, x, x, bytes_of(x, table), bytes_of(x)), 0,
      [&](const kernels::Compute& on) { kernels::rope(on, x, table, rotation, pairs, rows); });
}

void ComputeStream::swiglu(const Tensor& y, const ConstTensor& gate, const ConstTensor& up) {
  run(touches("swiglu", gate, y, y, bytes_of(gate, up), bytes_of(y)), 0,
      [&](const kernels::Compute& on) { kernels::swiglu(on, y, gate, up); });
}

void ComputeStream::swiglu_backward(const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                                    const ConstTensor& up) {
  run(touches("swiglu backward", dy, dgate, dgate, bytes_of(dy, gate, up), bytes_of(dgate, dup)), 0,
      [&](const kernels::Compute& on) { kernels::swiglu_backward(on, dgate, dup, dy, gate, up); });
}

void ComputeStream::gelu(const Tensor& y, const ConstTensor& x, kernels::Gelu form) {
  run(touches("gelu", x, y, y, bytes_of(x), bytes_of(y)), 0, [&](const kernels::Compute& on) { kernels::gelu(on, y, x, form); });
}

void ComputeStream::gelu_backward(const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, kernels::Gelu form) {
  run(touches("gelu backward", dy, dx, dx, bytes_of(dy, x), bytes_of(dx)), 0,
      [&](const kernels::Compute& on) { kernels::gelu_backward(on, dx, dy, x, form); });
}

void ComputeStream::geglu(const Tensor& y, const ConstTensor& gate, const ConstTensor& up, kernels::Gelu form) {
  run(touches("geglu", gate, y, y, bytes_of(gate, up), bytes_of(y)), 0,
      [&](const kernels::Compute& on) { kernels::geglu(on, y, gate, up, form); });
}

void ComputeStream::geglu_backward(const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                                   const ConstTensor& up, kernels::Gelu form) {
  run(touches("geglu backward", dy, dgate, dgate, bytes_of(dy, gate, up), bytes_of(dgate, dup)), 0,
      [&](const kernels::Compute& on) { kernels::geglu_backward(on, dgate, dup, dy, gate, up, form); });
}

void ComputeStream::dropout(const Tensor& y, const ConstTensor& x, std::span<const std::uint64_t> rows,
                            const kernels::Dropout& of) {
  run(touches("dropout", x, y, y, bytes_of(x), bytes_of(y)), 0,
      [&](const kernels::Compute& on) { kernels::dropout(on, y, x, rows, of); });
}

void ComputeStream::gather_rows(const Tensor& out, const ConstTensor& table, std::span<const std::uint32_t> rows) {
  run(touches("gather rows", table, out, out, out.elements() * size_of(table.dtype()), bytes_of(out)), 0,
      [&](const kernels::Compute& on) { kernels::gather_rows(on, out, table, rows); });
}

void ComputeStream::scatter_add_rows(const Tensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows) {
  run(touches("scatter rows", values, table, values, bytes_of(values) + values.elements() * size_of(table.dtype()),
              values.elements() * size_of(table.dtype())),
      0, [&](const kernels::Compute& on) { kernels::scatter_add_rows(on, table, values, rows); });
}

void ComputeStream::convert(const Tensor& to, const ConstTensor& from) {
  run(touches("copy", from, to, to, bytes_of(from), bytes_of(to)), 0,
      [&](const kernels::Compute& on) { kernels::convert(on, to, from); });
}

void ComputeStream::add(const Tensor& out, const ConstTensor& a, const ConstTensor& b) {
  run(touches("add", a, out, out, bytes_of(a, b), bytes_of(out)), 0,
      [&](const kernels::Compute& on) { kernels::add(on, out, a, b); });
}

void ComputeStream::add_multiple(const Tensor& out, const ConstTensor& a, const ConstTensor& b, double factor) {
  run(touches("add multiple", a, out, out, bytes_of(a, b), bytes_of(out)), 0,
      [&](const kernels::Compute& on) { kernels::add_multiple(on, out, a, b, factor); });
}

void ComputeStream::multiply(const Tensor& out, const ConstTensor& a, double factor) {
  run(touches("multiply", a, out, out, bytes_of(a), bytes_of(out)), 0,
      [&](const kernels::Compute& on) { kernels::multiply(on, out, a, factor); });
}

void ComputeStream::fill_zero(const Tensor& out) {
  run(touches("zero", out, out, out, 0, bytes_of(out)), 0, [&](const kernels::Compute& on) { kernels::fill_zero(on, out); });
}

void ComputeStream::cap_logits(const Tensor& logits, double cap) {
  run(touches("soft cap", logits, logits, logits, bytes_of(logits), bytes_of(logits)), 0,
      [&](const kernels::Compute& on) { kernels::cap_logits(on, logits, cap); });
}

void ComputeStream::cross_entropy_begin(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit) {
  run(touches("loss begin", maximum, maximum, maximum, 0, bytes_of(maximum, sum, label_logit)), 0,
      [&](const kernels::Compute&) { kernels::cross_entropy_begin(maximum, sum, label_logit); });
}

void ComputeStream::cross_entropy_update(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit,
                                         const ConstTensor& logits, std::span<const std::int64_t> labels, std::int64_t first_id) {
  run(touches("loss", logits, maximum, logits, bytes_of(logits, maximum, sum, label_logit), bytes_of(maximum, sum, label_logit)),
      0, [&](const kernels::Compute& on) {
        kernels::cross_entropy_update(on, maximum, sum, label_logit, logits, labels, first_id);
      });
}

void ComputeStream::cross_entropy_finish(const Tensor& lse, const ConstTensor& maximum, const ConstTensor& sum) {
  run(touches("loss finish", maximum, lse, lse, bytes_of(maximum, sum), bytes_of(lse)), 0,
      [&](const kernels::Compute&) { kernels::cross_entropy_finish(lse, maximum, sum); });
}

void ComputeStream::merge_log_sum_exp(const Tensor& lse, std::span<const ConstTensor> parts) {
  run(touches("loss merge", parts.front(), lse, lse, bytes_of_parts(parts), bytes_of(lse)), 0,
      [&](const kernels::Compute&) { kernels::merge_log_sum_exp(lse, parts); });
}

double ComputeStream::cross_entropy_loss(const ConstTensor& lse, const ConstTensor& label_logit,
                                         std::span<const std::int64_t> labels) {
  double loss = 0;
  run(touches("loss sum", lse, lse, lse, bytes_of(lse, label_logit), 0), 0,
      [&](const kernels::Compute&) { loss = kernels::cross_entropy_loss(lse, label_logit, labels); });
  return loss;
}

void ComputeStream::cross_entropy_backward(const Tensor& dlogits, const ConstTensor& logits, const ConstTensor& lse,
                                           std::span<const std::int64_t> labels, std::int64_t first_id, double weight,
                                           double cap) {
  run(touches("loss backward", logits, dlogits, dlogits, bytes_of(logits, lse), bytes_of(dlogits)), 0,
      [&](const kernels::Compute& on) {
        kernels::cross_entropy_backward(on, dlogits, logits, lse, labels, first_id, weight, cap);
      });
}

void ComputeStream::adamw(const kernels::AdamW& options, const Tensor& parameters, const Tensor& master, const Tensor& m,
                          const Tensor& v, const ConstTensor& gradient) {
  run(touches("adamw", gradient, parameters, parameters, bytes_of(master.empty() ? parameters : master, m, v, gradient),
              bytes_of(parameters, master, m, v)),
      0, [&](const kernels::Compute& on) { kernels::adamw(on, options, parameters, master, m, v, gradient); });
}

double ComputeStream::sum_of_squares(const ConstTensor& x) {
  double sum = 0;
  run(touches("sum of squares", x, x, x, bytes_of(x), 0), kernels::sum_of_squares_workspace(x.elements()),
      [&](const kernels::Compute& on) { sum = kernels::sum_of_squares(on, x); });
  return sum;
}

void ComputeStream::add_squares(std::span<kernels::SquareLanes> blocks, const ConstTensor& x, std::size_t first) {
  run(touches("sum of squares", x, x, x, bytes_of(x), 0), 0,
      [&](const kernels::Compute& on) { kernels::add_squares(on, blocks, x, first); });
}

}  // namespace tsprun::detail
