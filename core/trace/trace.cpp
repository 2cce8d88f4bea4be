// A program's trace, and the spans of programs and schedules.
#include "core/context.h"
#include "core/trace/recorder.h"
#include "transport/cause.h"

namespace tsprun {

using namespace detail;

Trace::Trace(Context& context) : engine_(&engine_of(context)), recorder_(std::make_unique<TraceRecorder>()) {
  if (!engine_->idle()) throw Error(Cause::refused, "Trace: an operation is pending; wait for it first");
  if (engine_->is_observed()) throw Error(Cause::refused, "Trace: another trace of this rank is being recorded; end it first");
  engine_->observe(recorder_.get());
}

Trace::~Trace() { engine_->observe(nullptr); }

const std::vector<TraceEvent>& Trace::events() const { return recorder_->events(); }
std::uint64_t Trace::left_out() const { return recorder_->left_out(); }
void Trace::clear() { recorder_->clear(); }

TraceSpan::TraceSpan(Trace& trace, std::string_view name, std::int64_t number) : TraceSpan(trace.recorder_.get(), name, number) {}

TraceSpan::TraceSpan(TraceRecorder* recorder, std::string_view name, std::int64_t number)
    : recorder_(recorder != nullptr && recorder->awake() ? recorder : nullptr),
      name_(name),
      number_(number),
      begin_ns_(recorder_ == nullptr ? 0 : recorder_->clock().now_ns()) {}

TraceSpan::~TraceSpan() {
  if (recorder_ == nullptr) return;
  recorder_->add({.begin_ns = begin_ns_,
                  .end_ns = recorder_->clock().now_ns(),
                  .name = name_,
                  .row = TraceEvent::kSpans,
                  .number = number_});
}

}  // namespace tsprun
