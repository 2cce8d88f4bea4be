// Text of a trace, in pieces that are buffered. Where the pieces go is up to the class derived from it.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string_view>

namespace tsprun::detail {

/// Buffer of a trace's text; call flush() when full() says so.
class TraceText {
 public:
  TraceText() = default;
  TraceText(const TraceText&) = delete;
  TraceText& operator=(const TraceText&) = delete;
  virtual ~TraceText() = default;

  /// Appends formatted text to the buffer.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Arguments>(arguments)...);
  }
  /// Returns true if the buffer holds enough text to be worth a flush() (64 KiB).
  bool full() const { return buffer_.size() >= kPiece; }
  /// Hands the buffer on. Throws Error(refused) if the text can't be taken.
  void flush() {
    take({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }

 protected:
  static constexpr std::size_t kPiece = std::size_t{1} << 16;

 private:
  /// Takes the next piece. Throws Error(refused).
  virtual void take(std::string_view piece) = 0;

  fmt::memory_buffer buffer_;
};

}  // namespace tsprun::detail
