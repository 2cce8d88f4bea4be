// Messages that launchers exchange, as text. Used only by cluster*.cpp and admission.cpp.
#pragma once

#include "core/board/news.h"
#include "launcher/agreement.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// A node's request to node 0 to join the job: made once when it comes (node/I), and again when it has read its files (proof/I).
struct JoinRequest {
  std::string nonce;          ///< names the answer's key, as two nodes may come with one number
  std::uint64_t attempt = 0;  ///< how many times this job was started before
  std::string trouble;        ///< why the job can't start on this node; empty: it can
  Agreement options;          ///< what the node was started with; the second time, its files' digests

  std::string text() const;
  static std::optional<JoinRequest> parse(const std::string& text);
};

/// Beginning of node 0's answer that the job starts, "ok PORT". Other answers are kAgain and a Refusal.
inline constexpr std::string_view kOk = "ok ";
/// Node 0's answer to a node that is ahead: node 0 hasn't begun that attempt yet, so come again.
inline constexpr std::string_view kAgain = "again";

/// Reason why the job can't start. An empty `why`: it can.
struct Refusal {
  std::string why;
  int missing = -1;  ///< the first node that didn't come or doesn't answer; -1: the reason is another

  explicit operator bool() const { return !why.empty(); }
  std::string text() const;
  /// Reads what text() wrote. Any other text becomes the reason.
  static Refusal parse(const std::string& text);
};
/// Returns the refusal for a node that comes after the job has begun.
Refusal begun_already();

/// The end of a job, as live/bye/I and live/end tell it.
struct Ending {
  Failure failure;           ///< cause none: the job succeeded
  int code = 0;              ///< tsprun's exit code on the failing rank's node; 0: derive it from the failure
  std::string trouble = {};  ///< reason why the trace of a job that succeeded couldn't be written, as rank 0 told node 0

  std::string text() const;
  static std::optional<Ending> parse(const std::string& text);
};

/// Returns the agreement itself if it fits into a value of the store, else a digest of it, which still tells two long lists
/// apart. `what`: what it lists, such as "options".
Agreement short_enough(Agreement agreement, const char* what);

/// Exception that ends the reading of files when its result isn't needed any more.
struct Answered {};
/// Nanoseconds between two signs of life of a node that reads files.
inline constexpr std::uint64_t kBusy_ns = 200'000'000;
/// Longest wait for messages before clocks are looked at again, in milliseconds.
inline constexpr int kSlice_ms = 50;

}  // namespace tsprun::detail::launcher
