// Passes the ranks' output to the user: in whole lines, each with its rank before it, and without blocking the thread that also
// watches the ranks.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns true if the descriptor is a terminal on which a line can be redrawn: TERM is set, and isn't "dumb".
bool redraws_lines(int descriptor);
/// Returns those of the fields, which have tabs between them, that fit side by side into `columns`. A field is whole or left out;
/// earlier fields come first.
std::string fitted(std::string_view fields, std::size_t columns);

/// Queue for tsprun's own stdout or stderr. Writes only what the descriptor takes at once, and keeps the rest. Leaves the
/// descriptor's mode alone, since other processes may share it (a shell's terminal).
class Output {
 public:
  /// Wraps a descriptor, which stays the caller's.
  explicit Output(int descriptor);

  /// Adds text; writes nothing yet.
  void append(std::string_view text);
  /// Replaces the status line below everything else, on a terminal that redraws lines; empty: removes it. Elsewhere it does
  /// nothing. `fields`: parts of the line with tabs between them, the most important first; a narrow terminal shows as many as
  /// fit.
  void show_status(std::string_view fields);
  /// Writes as much as possible without blocking.
  void flush();
  /// Writes everything. Waits for the reader at most `milliseconds` in all, however steadily it takes little. Returns false if
  /// something is left.
  bool drain(int milliseconds);

  /// Gives up on the reader: drops what is left, and redirects the descriptor to /dev/null for everything that this process
  /// writes to it from now on.
  void abandon();

  /// Returns true if text waits to be written.
  bool pending() const { return !pending_.empty(); }
  /// Returns true if so much text waits (over 1 MiB) that reading more from ranks would only fill memory.
  bool congested() const { return pending_.size() > kCongested; }
  /// Returns the errno of the write that failed (EPIPE: the reader is gone), after which everything is discarded; 0: none failed.
  int error() const { return error_; }
  /// Returns a descriptor to watch for room to write; -1 if there always is room (a file).
  int descriptor() const { return waits_ ? copy_.get() : -1; }

 private:
  static constexpr std::size_t kCongested = std::size_t{1} << 20;
  bool has_room(int milliseconds) const;
  bool write_some();

  int fd_;
  int to_;  // where bytes are written: fd_, or copy_ if that is a terminal's description of our own
  posix::UniqueFd copy_;
  bool waits_;  // true for a pipe, socket or terminal, which may be full
  bool redraws_;
  bool shows_status_ = false;
  int error_ = 0;
  std::string pending_;
  std::size_t written_ = 0;
};

/// Passes on what comes through one pipe from a rank: with `whole_lines` line by line, each after the prefix; otherwise bytes as
/// they come.
class LineRelay {
 public:
  LineRelay() = default;
  LineRelay(posix::UniqueFd pipe, std::string prefix, bool whole_lines);

  int descriptor() const { return pipe_.get(); }
  bool open() const { return static_cast<bool>(pipe_); }
  /// Reads what is there, at most 64 KiB. Returns false at the end of the pipe, or if nothing was there; open() tells which.
  bool read_into(Output& output);
  /// Passes on a last line that has no newline.
  void finish(Output& output);

 private:
  void pass_on(std::string_view bytes, Output& output);

  posix::UniqueFd pipe_;
  std::string prefix_;
  bool whole_lines_ = true;
  std::string partial_;
};

}  // namespace tsprun::detail::launcher
