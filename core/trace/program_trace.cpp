// Prints a rank's events to the descriptor, and a last byte that says that they are whole.
#include "core/trace/program_trace.h"

#include "core/trace/events_text.h"
#include "transport/cause.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>

namespace tsprun::detail {

namespace {

class DescriptorText final : public TraceText {
 public:
  explicit DescriptorText(int descriptor) : descriptor_(descriptor) {}

 private:
  void take(std::string_view piece) override {
    if (const int error = posix::write_all(descriptor_, piece); error != 0)
      throw system_error(Cause::refused, "writing this rank's part of the trace", error);
  }

  int descriptor_;
};

}  // namespace

std::string ProgramTracePlace::text() const { return fmt::format("{}:{}:{}", descriptor, zero_ns, flows); }

ProgramTracePlace ProgramTracePlace::parse(std::string_view text) {
  std::string_view rest = text;
  const auto descriptor = number_from<int>(take_word(rest, ':'));
  const auto zero_ns = number_from<std::uint64_t>(take_word(rest, ':'));
  const auto flows = number_from<int>(rest);
  if (descriptor && zero_ns && flows && *flows >= 0 && *flows <= static_cast<int>(TraceFlows::none))
    return {*descriptor, *zero_ns, *flows};
  throw Error(Cause::refused, fmt::format("{}={}: it isn't what tsprun sets; unset it", kVariable, text));
}

ProgramTrace::ProgramTrace(const ProgramTracePlace& place, Engine& engine, const Heap& heap)
    : place_(place), file_(::fcntl(place.descriptor, F_DUPFD_CLOEXEC, 3)), engine_(&engine) {
  if (!file_)
    throw system_error(Cause::refused, fmt::format("{}: descriptor {}", ProgramTracePlace::kVariable, place.descriptor), errno);
  recorder_.watch(&heap);
  engine_->observe(&recorder_);
}

void ProgramTrace::write() const try {
  DescriptorText text(file_.get());
  print_rank(text, recorder_, *engine_, place_.zero_ns, static_cast<TraceFlows>(place_.flows), [] {});
  text.print("{}", kWholeTrace);
  text.flush();
} catch (const Error&) {  // NOLINT(bugprone-empty-catch): the last byte is missing, which tsprun notices
}

}  // namespace tsprun::detail
