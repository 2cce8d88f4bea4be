// The compute stream of a rank: runs kernels one after another on the rank's threads. Between their tasks, kernels call a tick in
// which communication makes progress.
//
// Schedules call kernels only here: the stream provides workspace and threads, measures time, counts FLOPs and fills the trace.
// Each function runs the kernel of the same name in core/kernels/, where it is documented.
#pragma once

#include "core/kernels/activation.h"
#include "core/kernels/bias.h"
#include "core/kernels/cross_entropy.h"
#include "core/kernels/dropout.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/embedding.h"
#include "core/kernels/flash.h"
#include "core/kernels/gemm.h"
#include "core/kernels/norm.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/parallel.h"
#include "core/kernels/rope.h"
#include "core/memory/owned_tensor.h"
#include "core/streams/engine.h"

#include <cstdint>
#include <span>

namespace tsprun::detail {

class Recorder;
class TraceRecorder;
struct KernelCost;
/// Runs the kernels of one rank; used by one thread, the rank's.
class ComputeStream {
 public:
  /// Runs kernels on `threads` ≥ 1 threads. `trace` and `recorder` may be null. All references must outlive the stream. On a
  /// phantom, kernels take their workspace and count their FLOPs, but don't run, unless the recorder wants them to; values that
  /// they return are 0.
  ComputeStream(Engine& engine, Heap& heap, std::size_t threads, TraceRecorder* trace = nullptr, Recorder* recorder = nullptr);
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;

  std::size_t threads() const { return threads_; }
  /// Runs tasks 0 … count − 1 on the stream's threads, with ticks, as Pool::run() does: work that is no kernel, such as reading
  /// files, and isn't counted as computation.
  void run_tasks(std::size_t count, kernels::Pool::Task task);
  /// Returns the seconds spent in kernels so far, without the communication in their ticks.
  double seconds() const { return static_cast<double>(kernel_ns_ - tick_ns_) * 1e-9; }
  /// Returns the seconds that ticks of kernels spent on communication so far.
  double tick_seconds() const { return static_cast<double>(tick_ns_) * 1e-9; }
  /// Returns the floating point operations of matrix products and attention so far. Attention counts only the query-key pairs
  /// that its mask leaves.
  double flops() const { return flops_; }

  // --- matrix products and attention
  /// `matrix`: the weight that is multiplied, in the paper's symbols, "W_Q"; "dW_Q" where its gradient is computed, "dX of W_Q"
  /// where that of its input is; a literal, for traces.
  void gemm(std::string_view matrix, const Tensor& c, const ConstTensor& a, const ConstTensor& b,
            kernels::Write write = kernels::Write::replace);
  void flash_forward(const kernels::Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                     const ConstTensor& k, const ConstTensor& v);
  void flash_delta(const Tensor& delta, const ConstTensor& d_o, const ConstTensor& o);
  void flash_backward(const kernels::Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                      const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                      const ConstTensor& k, const ConstTensor& v, kernels::Write write = kernels::Write::replace);
  void merge_attention(double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                       std::span<const ConstTensor> part_lse);
  void round_lse(double scale, const Tensor& one, const ConstTensor& two);
  bool has_lost_lse(const ConstTensor& lse, const ConstTensor& o) const;

  // --- rows
  void rms_norm(const Tensor& y, const ConstTensor& x, const ConstTensor& gain, double epsilon,
                const kernels::NormForm& form = {}, const kernels::WholeRows& whole = {});
  void rms_norm_backward(const Tensor& dx, const Tensor& dgain, const ConstTensor& dy, const ConstTensor& x,
                         const ConstTensor& gain, double epsilon, kernels::Write write = kernels::Write::replace,
                         const kernels::NormForm& form = {}, const kernels::WholeRows& whole = {});
  void row_sums(const Tensor& sums, const ConstTensor& x, const ConstTensor& dy = {}, const ConstTensor& gain = {},
                const kernels::NormForm& form = {});
  void layer_norm(const Tensor& y, const ConstTensor& x, const ConstTensor& gain, const ConstTensor& bias, double epsilon,
                  const kernels::NormForm& form = {});
  void layer_norm_backward(const Tensor& dx, const Tensor& dgain, const Tensor& dbias, const ConstTensor& dy,
                           const ConstTensor& x, const ConstTensor& gain, double epsilon,
                           kernels::Write write = kernels::Write::replace, const kernels::NormForm& form = {});
  void add_bias(const Tensor& x, const ConstTensor& bias);
  void bias_backward(const Tensor& dbias, const ConstTensor& dy);
  void rope_table(const Tensor& table, std::span<const std::int64_t> positions, std::span<const double> frequencies,
                  std::span<const double> factors = {});
  void rope(const Tensor& x, const ConstTensor& table, kernels::Rotation rotation,
            kernels::RotaryPairs pairs = kernels::RotaryPairs::halves, std::span<const std::uint32_t> rows = {});
  void swiglu(const Tensor& y, const ConstTensor& gate, const ConstTensor& up);
  void swiglu_backward(const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                       const ConstTensor& up);
  void gelu(const Tensor& y, const ConstTensor& x, kernels::Gelu form);
  void gelu_backward(const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, kernels::Gelu form);
  void geglu(const Tensor& y, const ConstTensor& gate, const ConstTensor& up, kernels::Gelu form);
  void geglu_backward(const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                      const ConstTensor& up, kernels::Gelu form);
  void dropout(const Tensor& y, const ConstTensor& x, std::span<const std::uint64_t> rows, const kernels::Dropout& of);
  void gather_rows(const Tensor& out, const ConstTensor& table, std::span<const std::uint32_t> rows);
  void scatter_add_rows(const Tensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows);

  // --- elements
  void convert(const Tensor& to, const ConstTensor& from);
  void add(const Tensor& out, const ConstTensor& a, const ConstTensor& b);
  void add_multiple(const Tensor& out, const ConstTensor& a, const ConstTensor& b, double factor);
  void multiply(const Tensor& out, const ConstTensor& a, double factor);
  void fill_zero(const Tensor& out);

  // --- loss
  void cap_logits(const Tensor& logits, double cap);
  void cross_entropy_begin(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit);
  void cross_entropy_update(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit, const ConstTensor& logits,
                            std::span<const std::int64_t> labels, std::int64_t first_id);
  void cross_entropy_finish(const Tensor& lse, const ConstTensor& maximum, const ConstTensor& sum);
  void merge_log_sum_exp(const Tensor& lse, std::span<const ConstTensor> parts);
  double cross_entropy_loss(const ConstTensor& lse, const ConstTensor& label_logit, std::span<const std::int64_t> labels);
  void cross_entropy_backward(const Tensor& dlogits, const ConstTensor& logits, const ConstTensor& lse,
                              std::span<const std::int64_t> labels, std::int64_t first_id, double weight, double cap = 0);

  // --- optimizer
  void adamw(const kernels::AdamW& options, const Tensor& parameters, const Tensor& master, const Tensor& m, const Tensor& v,
             const ConstTensor& gradient);
  double sum_of_squares(const ConstTensor& x);
  void add_squares(std::span<kernels::SquareLanes> blocks, const ConstTensor& x, std::size_t first);

 private:
  /// Runs kernel(compute), which has this cost, with `workspace` bytes of workspace; measures its time and counts its FLOPs.
  template <class Kernel>
  void run(const KernelCost& cost, std::size_t workspace, Kernel&& kernel);
  std::span<std::byte> workspace(std::size_t bytes);
  void tick();

  Engine& engine_;
  Heap& heap_;
  std::size_t threads_;
  kernels::Pool pool_;
  HeapBlock workspace_;
  TraceRecorder* trace_;
  Recorder* recorder_;
  std::uint64_t kernel_ns_ = 0;
  std::uint64_t tick_ns_ = 0;
  std::uint64_t ticks_ = 0;
  double flops_ = 0;
};

}  // namespace tsprun::detail
