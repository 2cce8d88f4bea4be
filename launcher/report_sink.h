// The pipe by which rank 0 of a built-in command sends its results to the launcher, in frames.
//
//   frame   u8 kind · u32 length, little-endian · that many bytes
//   kinds   'L' line, 'T' piece of a text, 'E' line for stderr, 'J' JSON, 'A' JSON to append, 'S' a step's JSON, 'P' progress
//
// The launcher doesn't trust the frames: one longer than kMaxFrame, or of an unknown kind, ends the channel.
#pragma once

#include "transport/posix.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Largest payload of a frame, in bytes.
inline constexpr std::size_t kMaxFrame = std::size_t{64} << 20;

/// Writing end of the pipe. Every rank has one; on ranks other than 0 it discards everything. Writing blocks while the pipe is
/// full. Throws Error(disconnected) if tsprun no longer reads, Error(refused) for a payload of more than kMaxFrame bytes.
class ReportSink {
 public:
  ReportSink() = default;
  explicit ReportSink(posix::UniqueFd pipe) : pipe_(std::move(pipe)) {}

  /// Prints one line (without the final newline) on tsprun's stdout at once, without a rank's prefix.
  void line(std::string_view text);
  /// Sets a key of the JSON report. Later values replace earlier ones.
  void set(std::string_view key, const nlohmann::ordered_json& value);
  /// Appends to an array in the JSON report, which begins empty.
  void append(std::string_view key, const nlohmann::ordered_json& value);
  /// Appends to the JSON report's `steps`, which may be millions (step_list.h).
  void step(const nlohmann::ordered_json& row);
  /// Shows a status line on a terminal, below everything else, until the next status, text or line. Elsewhere nothing is shown.
  /// `fields`: ASCII texts with tabs between them, the most important first; see Output::show_status().
  void progress(std::string_view fields);
  /// Prints a piece of text on tsprun's stdout at once, exactly as given.
  void text(std::string_view piece);
  /// Prints one line (without the final newline) on tsprun's stderr.
  void error_line(std::string_view text);

 private:
  void write_frame(char kind, std::string_view payload);
  posix::UniqueFd pipe_;
};

/// Splits the bytes that arrive, in pieces of any size, into frames again.
class FrameReader {
 public:
  struct Frame {
    char kind = 0;
    std::string payload;
  };
  /// Adds bytes as they came. Returns false once the channel is damaged.
  bool feed(std::string_view bytes);
  /// Takes the next whole frame. Returns false if there is none yet.
  bool next(Frame& frame);

 private:
  std::string pending_;
  bool damaged_ = false;
};

/// Parses a JSON object that a rank has sent; nothing if it is none, or is nested deeper than 64 levels.
std::optional<nlohmann::ordered_json> parse_object(std::string_view json);

/// Merges a frame of kind 'J' or 'A' into the report. JSON that isn't an object, or is nested deeper than 64 levels, is left out.
void merge_results(nlohmann::ordered_json& report, const FrameReader::Frame& frame);

}  // namespace tsprun::detail::launcher
