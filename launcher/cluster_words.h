// What launchers say to each other when they meet, as text: for cluster*.cpp and door.cpp alone.
#pragma once

#include "launcher/agreement.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string text_of(const std::vector<std::byte>& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

/// The number behind a prefix; -1 if the key has another one, or none below `limit`.
inline int number_after(const std::string& key, std::string_view prefix, int limit) {
  if (!key.starts_with(prefix)) return -1;
  int number = -1;
  const char* end = key.data() + key.size();
  const auto parsed = std::from_chars(key.data() + prefix.size(), end, number);
  return parsed.ec == std::errc{} && parsed.ptr == end && number >= 0 && number < limit ? number : -1;
}

/// What a node says when it comes, and again when it has read its files.
struct Arrival {
  std::string nonce;          ///< the answer's name: there may be two nodes of one number
  std::uint64_t attempt = 0;  ///< how many times this job was begun before
  std::string trouble;        ///< why it can't start here; empty: it can
  Agreement options;          ///< what it was started with; then, its files' digests

  std::string text() const;
  static std::optional<Arrival> parse(const std::string& text);
};

/// Node 0's answers: "ok PORT", or a refusal, or
inline constexpr std::string_view kOk = "ok ";
/// to a node that is ahead: node 0 hasn't begun that attempt yet.
inline constexpr std::string_view kAgain = "again";

/// Why the job can't start; no text: it can.
struct Refusal {
  std::string why;
  int missing = -1;  ///< the first node that didn't come, or doesn't answer; -1: another reason

  explicit operator bool() const { return !why.empty(); }
  /// "no -1 why", "no 2 why"
  std::string text() const;
  static Refusal parse(std::string_view text);
};
/// To a node that comes too late.
Refusal begun_already();

/// A value of the store has its limits; digests can still tell two long lists apart. `what` they are: "options".
Agreement short_enough(Agreement agreement, const char* what);

/// Ends the reading of files when nobody waits for it any more.
struct Answered {};
/// How often a node that still reads files says so.
inline constexpr std::uint64_t kBusy_ns = 200'000'000;
inline constexpr int kSlice_ms = 50;

}  // namespace tsprun::launcher
