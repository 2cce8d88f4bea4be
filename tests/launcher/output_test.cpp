// Ranks' lines on their way to the user.
#include "launcher/output.h"
#include "tests/support/patience.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <pty.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace tsprun::detail::launcher::output_test {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read = posix::UniqueFd(ends[0]);
    write = posix::UniqueFd(ends[1]);
  }
  posix::UniqueFd read;
  posix::UniqueFd write;
};

void put(const Pipe& pipe, std::string_view text) {
  ASSERT_EQ(::write(pipe.write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string take(const Pipe& pipe) {
  std::array<char, 65536> buffer;
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  const ssize_t count = ::read(pipe.read.get(), buffer.data(), buffer.size());
  return count > 0 ? std::string(buffer.data(), static_cast<std::size_t>(count)) : std::string();
}

class Relayed : public testing::Test {
 protected:
  std::string relay(bool whole_lines, const std::vector<std::string>& pieces) {
    Pipe from_rank;
    LineRelay relay(std::move(from_rank.read), whole_lines ? "[3] " : "", whole_lines);
    Output output(to_user_.write.get());
    for (const std::string& piece : pieces) {
      put(from_rank, piece);
      EXPECT_TRUE(relay.read_into(output));
    }
    from_rank.write.reset();
    EXPECT_FALSE(relay.read_into(output));
    EXPECT_FALSE(relay.open());
    relay.finish(output);
    EXPECT_TRUE(output.drain(1000));
    return take(to_user_);
  }
  Pipe to_user_;
};

TEST_F(Relayed, EveryLineBearsItsPrefixAndIsWhole) {
  EXPECT_EQ(relay(true, {"one\ntw", "o\n", "\n"}), "[3] one\n[3] two\n[3] \n");
}

TEST_F(Relayed, TheLastLineNeedsNoNewline) { EXPECT_EQ(relay(true, {"one\npart", "ial"}), "[3] one\n[3] partial\n"); }

TEST_F(Relayed, WithoutWholeLinesBytesPassAsTheyAre) { EXPECT_EQ(relay(false, {"prompt> ", "x\ry"}), "prompt> x\ry"); }

TEST(Output, AFullPipeKeepsTheRestInsteadOfBlocking) {
  Pipe to_user;
  Output output(to_user.write.get());
  const std::string text(std::size_t{3} << 20, 'x');
  output.append(text);
  output.flush();
  EXPECT_TRUE(output.pending());
  EXPECT_TRUE(output.congested());
  std::size_t arrived = 0;
  while (output.pending()) {
    arrived += take(to_user).size();
    output.flush();
  }
  for (std::string rest = take(to_user); !rest.empty(); rest = take(to_user)) arrived += rest.size();
  EXPECT_EQ(arrived, text.size());
}

// There is always room for a page more before the time is over.
TEST(Output, DrainingEndsInTimeThoughItsReaderIsSlow) {
  Pipe to_user;
  Output output(to_user.write.get());
  output.append(std::string(std::size_t{2} << 20, 'x'));
  output.flush();
  std::atomic<bool> over = false;
  std::thread reader([&] {
    for (std::array<char, 4096> page; !over; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      EXPECT_GT(::read(to_user.read.get(), page.data(), page.size()), 0);
  });
  EXPECT_FALSE(output.drain(300));
  EXPECT_TRUE(output.pending());
  over = true;
  reader.join();
}

TEST(Fitted, FieldsAreWholeOrLeftOut) {
  const std::string_view fields = "loss 4.1234\tstep 120/700\t80421 tokens/s\t[====>     ]\tETA 1:20";
  EXPECT_EQ(fitted(fields, 119), "loss 4.1234  step 120/700  80421 tokens/s  [====>     ]  ETA 1:20");
  EXPECT_EQ(fitted(fields, 60), "loss 4.1234  step 120/700  80421 tokens/s  [====>     ]");
  EXPECT_EQ(fitted(fields, 51), "loss 4.1234  step 120/700  80421 tokens/s  ETA 1:20");
  EXPECT_EQ(fitted(fields, 41), "loss 4.1234  step 120/700  80421 tokens/s");
  EXPECT_EQ(fitted(fields, 40), "loss 4.1234  step 120/700  [====>     ]");
  EXPECT_EQ(fitted(fields, 35), "loss 4.1234  step 120/700  ETA 1:20");
  EXPECT_EQ(fitted(fields, 11), "loss 4.1234");
  EXPECT_EQ(fitted(fields, 3), "");
  EXPECT_EQ(fitted("", 80), "");
}

/// A time after which a terminal to which all was written shows nothing more.
constexpr int kAWhile_ms = 200;

/// A terminal of so many columns, and what an Output writes to it.
class Terminal {
 public:
  Terminal(unsigned short columns, const char* kind) {
    ::setenv("TERM", kind, 1);
    int ends[2];
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    EXPECT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, &size), 0);
    near_ = posix::UniqueFd(ends[0]);
    far_ = posix::UniqueFd(ends[1]);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (before_) ::setenv("TERM", before_->c_str(), 1);
    else ::unsetenv("TERM");
  }
  int descriptor() const { return far_.get(); }
  /// Returns what comes until nothing more does for so long. The kernel passes on in pieces what is written at once, and on a
  /// busy machine with pauses.
  std::string seen(int milliseconds) const {
    std::string text;
    std::array<char, 4096> buffer;
    for (pollfd watched{near_.get(), POLLIN, 0}; ::poll(&watched, 1, milliseconds) > 0;) {
      const ssize_t count = ::read(near_.get(), buffer.data(), buffer.size());
      if (count <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  std::optional<std::string> before_ =
      std::getenv("TERM") != nullptr ? std::optional<std::string>(std::getenv("TERM")) : std::nullopt;
  posix::UniqueFd near_;
  posix::UniqueFd far_;
};

std::string status_on(unsigned short columns, const char* kind) {
  const Terminal terminal(columns, kind);
  Output output(terminal.descriptor());
  output.show_status("loss 4.1234\tstep 120/700\t80421 tokens/s\tgrad_norm 0.123");
  output.append("a line\n");
  EXPECT_TRUE(output.drain(1000));
  std::string text;
  test::until(30, [&] {
    text += terminal.seen(0);
    return text.ends_with("a line\r\n");
  });
  return text + terminal.seen(kAWhile_ms);
}

TEST(OnATerminal, TheStatusHasWhatFitsAndMakesRoomForLines) {
  const std::string erase = "\r\033[K";
  EXPECT_EQ(status_on(120, "xterm"), "loss 4.1234  step 120/700  80421 tokens/s  grad_norm 0.123" + erase + "a line\r\n");
  EXPECT_EQ(status_on(42, "xterm"), "loss 4.1234  step 120/700  80421 tokens/s" + erase + "a line\r\n");
  EXPECT_EQ(status_on(40, "xterm"), "loss 4.1234  step 120/700" + erase + "a line\r\n");
}

/// Such as that of an ssh whose other end sleeps.
TEST(OnATerminal, WhoseReaderPausesNothingWaitsForIt) {
  const Terminal terminal(80, "dumb");
  Output output(terminal.descriptor());
  for (int i = 0; i < 20'000; ++i) output.append("a line\n");
  std::atomic<bool> returned = false;
  std::thread flushing([&] {
    for (int i = 0; i < 20; ++i) output.flush();
    returned = true;
  });
  for (int tries = 0; tries < 6000 && !returned; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(returned) << "flush() waits for the terminal's reader";
  std::size_t lines = 0;
  const auto count_lines = [&](int milliseconds) {
    const std::string text = terminal.seen(milliseconds);
    lines += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  };
  count_lines(kAWhile_ms);  // whatever waits for room goes on
  flushing.join();
  EXPECT_TRUE(output.pending());
  test::until(30, [&] {
    output.flush();
    count_lines(0);
    return !output.pending() && lines >= 20'000;
  });
  EXPECT_FALSE(output.pending());
  count_lines(kAWhile_ms);
  EXPECT_EQ(lines, 20'000U);
}

TEST(AnOutput, ThatAlwaysHasRoomIsNotWatched) {
  const posix::UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Output output(null.get());
  output.append("a line\n");
  EXPECT_EQ(output.descriptor(), -1);  // epoll refuses /dev/null
  output.flush();
  EXPECT_FALSE(output.pending());
}

TEST(OnATerminal, OneThatCantRedrawGetsNoEscapeCodes) {
  EXPECT_EQ(status_on(80, "dumb"), "a line\r\n");
  EXPECT_EQ(status_on(80, ""), "a line\r\n");
}

}  // namespace
}  // namespace tsprun::detail::launcher::output_test
