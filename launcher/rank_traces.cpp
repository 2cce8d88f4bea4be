// Makes the files, and copies them into the trace.
#include "launcher/rank_traces.h"

#include "core/trace/program_trace.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

RankTraces::RankTraces(bootstrap::RankBlock ranks, TraceFlows flows) : ranks_(ranks), flows_(flows) {
  for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
    files_.emplace_back(::memfd_create(fmt::format("tsprun trace of rank {}", rank).c_str(), MFD_CLOEXEC));
    if (!files_.back()) throw system_error(Cause::refused, fmt::format("--trace: memory for the trace of rank {}", rank), errno);
  }
}

std::string RankTraces::place(int rank, std::uint64_t zero_ns) const {
  return ProgramTracePlace{.descriptor = descriptor(rank), .zero_ns = zero_ns, .flows = static_cast<int>(flows_)}.text();
}

bool RankTraces::print(int rank, TraceText& text) const {
  struct stat status {};
  char last = 0;
  if (::fstat(descriptor(rank), &status) != 0 || status.st_size == 0) return false;
  if (::pread(descriptor(rank), &last, 1, status.st_size - 1) != 1 || last != kWholeTrace) return false;
  std::array<char, std::size_t{1} << 16> piece;
  for (off_t at = 0; at < status.st_size - 1;) {
    const auto left = static_cast<std::size_t>(status.st_size - 1 - at);
    const ssize_t got = ::pread(descriptor(rank), piece.data(), std::min(piece.size(), left), at);
    if (got <= 0) throw system_error(Cause::refused, fmt::format("--trace: reading the part of rank {}", rank), errno);
    text.print("{}", std::string_view(piece.data(), static_cast<std::size_t>(got)));
    text.flush();
    at += got;
  }
  return true;
}

}  // namespace tsprun::detail::launcher
