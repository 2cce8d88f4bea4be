// The part of Job that passes on what ranks write: output relays, back pressure, rank 0's results.
#include "launcher/job.h"

#include <spdlog/spdlog.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::launcher {

namespace {
constexpr int kDrainTick_ms = 100;
/// Time that a job which was asked to end waits for the reader of its output.
constexpr std::uint64_t kReader_ns = 500'000'000;
}  // namespace

void Job::read_results(int rank) {
  RankProcess& from = process(rank);
  std::array<char, 1 << 16> buffer;
  while (from.results) {
    const ssize_t count = ::read(from.results.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0 || !frames_.feed({buffer.data(), static_cast<std::size_t>(count)})) {
      loop_.ignore(from.results.get());
      from.results.reset();
      break;
    }
    for (FrameReader::Frame frame; frames_.next(frame);) {
      switch (frame.kind) {
        case 'L': stdout_.append(frame.payload + "\n"); break;
        case 'T': stdout_.append(frame.payload); break;
        case 'E': stderr_.append(frame.payload + "\n"); break;
        case 'P': stdout_.show_status(frame.payload); break;
        case 'S':
          if (spec_->steps != nullptr) spec_->steps->append(frame.payload);
          break;
        default: merge_results(results_, frame); break;
      }
      if (frame.kind == 'T' && !frame.payload.empty()) text_is_open_ = frame.payload.back() != '\n';
    }
  }
}

void Job::read_relay(LineRelay& relay, Output& output) {
  const int descriptor = relay.descriptor();
  relay.read_into(output);
  if (relay.open()) return;
  loop_.ignore(descriptor);
  relay.finish(output);
}

void Job::read_ranks(Source source, bool on) {
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    const LineRelay& relay = source == Source::rank_stdout ? process(rank).out : process(rank).err;
    if (on) loop_.watch(relay.descriptor(), source, rank);
    else loop_.ignore(relay.descriptor());
  }
}

void Job::arrange_flow() {
  // Ranks are read while there is room for what they write; otherwise they wait in their write(), as before a full pipe.
  if (reading_stdout_ == stdout_.congested()) read_ranks(Source::rank_stdout, reading_stdout_ = !reading_stdout_);
  if (reading_stderr_ == stderr_.congested()) read_ranks(Source::rank_stderr, reading_stderr_ = !reading_stderr_);
  if (stdout_.pending()) loop_.watch(stdout_.descriptor(), Source::stdout_room, 0, true);
  else loop_.ignore(stdout_.descriptor());
  if (stderr_.pending()) loop_.watch(stderr_.descriptor(), Source::stderr_room, 0, true);
  else loop_.ignore(stderr_.descriptor());
  if (terminal_) {
    terminal_->push();
    if (terminal_->wants_input()) loop_.watch(STDIN_FILENO, Source::terminal);
    else loop_.ignore(STDIN_FILENO);
  }
}

void Job::take_late_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    if (asks_to_end(*signal) && request_.take(*signal, posix::now_ns())) keep_late_signal(*signal);
  }
}

/// Waits for the reader of our own output as long as it takes or, once a signal has asked tsprun to end, for kReader_ns; what is
/// not read by then is dropped. Returns false if the reader was given up.
bool Job::drain(Output& output) {
  while (!output.drain(kDrainTick_ms)) {
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGTSTP) ::kill(::getpid(), SIGSTOP);
      if (asks_to_end(*signal) && request_.take(*signal, posix::now_ns())) reader_until_ns_ = 1;
    }
    if (request_.signal() == 0) continue;
    if (reader_until_ns_ == 0) reader_until_ns_ = posix::now_ns() + kReader_ns;
    if (posix::now_ns() < reader_until_ns_) continue;
    output.abandon();
    return false;
  }
  return true;
}

void Job::pass_on_the_rest() {
  stdout_.show_status({});
  const auto pass_on = [&](LineRelay& relay, Output& output) {
    // No rank writes any more, so the pipe holds all that is left. A stray process may hold its other end, so its end isn't
    // awaited.
    while (relay.read_into(output)) {
      if (output.congested() && !drain(output)) return;
    }
    relay.finish(output);
  };
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    read_results(rank);
    pass_on(process(rank).out, stdout_);
    pass_on(process(rank).err, stderr_);
  }
  // Output after a text that broke off begins on a new line.
  if (std::exchange(text_is_open_, false)) stdout_.append("\n");
  drain(stdout_);
  drain(stderr_);
}

void Job::print_on_stderr(const std::string& text) {
  stderr_.append(text);
  drain(stderr_);
}

}  // namespace tsprun::detail::launcher
