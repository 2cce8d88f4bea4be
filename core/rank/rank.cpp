// A rank's tensors, waits and times.
#include "core/rank/rank.h"

#include "core/program/recorder.h"
#include "core/trace/recorder.h"

#include <algorithm>

namespace tsprun::detail {

Rank::Rank(Context& context, const RankOptions& options)
    : context_(context),
      trace_(options.trace),
      recorder_(options.recorder),
      compute_(engine_of(context), heap_of(context), options.threads, options.trace, options.recorder),
      begun_ns_(engine_of(context_).clock().now_ns()),
      pieces_(options.pieces) {
  engine_of(context_).record(recorder_);
  heap_of(context_).record(recorder_);
  if (trace_ == nullptr) return;
  engine_of(context_).observe(trace_);
  trace_->watch(&heap_of(context_));
}

Rank::~Rank() {
  engine_of(context_).record(nullptr);
  heap_of(context_).record(nullptr);
  if (trace_ == nullptr) return;
  engine_of(context_).observe(nullptr);
  trace_->watch(nullptr);
}

OwnedTensor Rank::tensor(Category category, DType dtype, std::span<const std::size_t> sizes, std::string_view what) {
  std::size_t bytes = size_of(dtype);
  for (const std::size_t size : sizes) bytes *= size;
  HeapBlock block = context_.allocate(bytes, what, category);
  if (recorder_ != nullptr) {
    recorder_->take(block.bytes(), category);
    if (recorder_->needs_pages()) std::ranges::fill(block.bytes(), std::byte{0});
  }
  return {std::move(block), dtype, sizes};
}

ListMemory Rank::list_memory(Category category, std::size_t bytes, std::string_view what) {
  ListMemory memory;
  memory.block_ = context_.allocate(bytes, what, category);
  if (is_phantom()) memory.elsewhere_.resize(bytes);
  return memory;
}

void Rank::wait(Work work) {
  const std::uint64_t begin = engine_of(context_).clock().now_ns();
  work.wait();
  waited_ns_ += engine_of(context_).clock().now_ns() - begin;
}

RankTimes Rank::times() const {
  const double waited = static_cast<double>(waited_ns_ + engine_of(context_).blocked_ns()) * 1e-9;
  return {.total = static_cast<double>(engine_of(context_).clock().now_ns() - begun_ns_) * 1e-9,
          .compute = compute_.seconds() - before_.compute,
          .communication = compute_.tick_seconds() + waited - before_.communication,
          .exposed_communication = waited - before_.exposed_communication};
}

void Rank::reset_times() {
  const RankTimes now = times();
  before_.compute += now.compute;
  before_.communication += now.communication;
  before_.exposed_communication += now.exposed_communication;
  begun_ns_ = engine_of(context_).clock().now_ns();
}

}  // namespace tsprun::detail
