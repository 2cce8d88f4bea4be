// How rank 0 of a built-in command hands its results to the launcher: frames over a pipe.
//
//   frame   u8 kind · u32 length, little-endian · that many bytes
//   kinds   'L' line, 'T' piece of a text, 'E' line for stderr, 'J' JSON, 'A' JSON to append, 'P' progress
//
// The launcher doesn't trust lengths: a frame over kMaxFrame or of unknown kind ends the channel.
#pragma once

#include "transport/posix.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::launcher {

inline constexpr std::size_t kMaxFrame = std::size_t{64} << 20;

/// The writing end. Every rank has one; those of ranks other than 0 swallow everything.
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
  /// What a terminal shows below everything else until the next such text or line. Elsewhere it isn't shown. Fields of ASCII with
  /// tabs between them, the most important first: see Output::show_status().
  void progress(std::string_view fields);
  /// Prints a piece of a text on tsprun's stdout at once, as it is.
  void text(std::string_view piece);
  /// Prints one line (without the final newline) on tsprun's stderr.
  void error_line(std::string_view text);

 private:
  void write_frame(char kind, std::string_view payload);
  posix::UniqueFd pipe_;
};

/// Takes frames apart, in whatever pieces they arrive.
class FrameReader {
 public:
  struct Frame {
    char kind = 0;
    std::string payload;
  };
  /// Adds bytes as they came; false once the channel is damaged.
  bool feed(std::string_view bytes);
  /// Takes the next whole frame; false if there is none yet.
  bool next(Frame& frame);

 private:
  std::string pending_;
  bool damaged_ = false;
};

}  // namespace tsprun::launcher
