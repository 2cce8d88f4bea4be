// How ranks' output reaches the user: whole lines, each with its rank before it, never blocking the one who also watches the
// ranks.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace tsprun::launcher {

/// A terminal on which a line can be drawn anew: not TERM=dumb, and no terminal whose kind nobody knows.
bool redraws_lines(int descriptor);
/// The fields (tabs between them) that fit into so many columns beside each other, each whole or left out, the first before all.
std::string fitted(std::string_view fields, std::size_t columns);

/// tsprun's own stdout or stderr. Writes only what the descriptor takes at once and keeps the rest. The descriptor's mode is left
/// alone, since others may share it (a shell's terminal).
class Output {
 public:
  explicit Output(int descriptor);

  void append(std::string_view text);
  /// Where lines can be redrawn: replaces the line that stands below everything else; empty: takes it away. Elsewhere nothing.
  /// `fields`: the line's parts, a tab between two, the most important first: a narrow terminal shows as many as it has room for.
  void show_status(std::string_view fields);
  /// Writes what goes without blocking.
  void flush();
  /// Writes all; waits for the reader at most `milliseconds` in all, however steadily it takes little. False if something is
  /// left.
  bool drain(int milliseconds);

  /// Nobody takes anything any more: what is left is dropped, and all that this process writes to the descriptor from now on, by
  /// whatever way, goes to /dev/null.
  void abandon();

  bool pending() const { return !pending_.empty(); }
  /// So much waits that reading more from ranks would only fill memory.
  bool congested() const { return pending_.size() > kCongested; }
  /// errno of a write that failed (EPIPE: the reader is gone); everything is swallowed from then on. 0: none did.
  int error() const { return error_; }
  /// A descriptor to wait on for room; -1 where there always is (a file).
  int descriptor() const { return waits_ ? copy_.get() : -1; }

 private:
  static constexpr std::size_t kCongested = std::size_t{1} << 20;
  bool has_room(int milliseconds) const;
  bool write_some();

  int fd_;
  posix::UniqueFd copy_;
  bool waits_;  // a pipe, socket or terminal, which may be full
  bool redraws_;
  bool shows_status_ = false;
  int error_ = 0;
  std::string pending_;
  std::size_t written_ = 0;
};

/// One pipe from a rank. With a prefix, lines are passed on when they are whole; without, bytes as they come.
class LineRelay {
 public:
  LineRelay() = default;
  LineRelay(posix::UniqueFd pipe, std::string prefix, bool whole_lines);

  int descriptor() const { return pipe_.get(); }
  bool open() const { return static_cast<bool>(pipe_); }
  /// Reads what is there, at most a few pages. False at the end of the pipe, or if nothing was there: see open().
  bool read_into(Output& output);
  /// Passes on a last line without newline.
  void finish(Output& output);

 private:
  void pass_on(std::string_view bytes, Output& output);

  posix::UniqueFd pipe_;
  std::string prefix_;
  bool whole_lines_ = true;
  std::string partial_;
};

}  // namespace tsprun::launcher
