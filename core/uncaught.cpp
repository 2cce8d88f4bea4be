// Writes an uncaught exception to stderr and to the flight board.
#include "core/uncaught.h"

#include "core/board/flight_board.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <unistd.h>

namespace tsprun::detail {

namespace {

/// State of the terminate handler. It must be global, because std::terminate takes no argument. The handler may run after the
/// context is gone and must still find the board, so node memory is mapped once more, for good.
struct TerminateState {
  const FlightBoard* board = nullptr;
  int rank = -1;
};
TerminateState terminate_state;
/// Exit code of a process whose rank was refused before it joined; tsprun uses the same.
constexpr int kRefusedCode = 2;
/// The handler that on_terminate() replaced. While there is no board, it handles exceptions that aren't an Error.
std::terminate_handler earlier_handler = nullptr;

void say(const std::string& line) { [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size()); }

[[noreturn]] void on_terminate() {
  Failure failure;
  failure.cause = Cause::exception;
  failure.detail = "std::terminate without an exception";
  bool own_words = false;
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const Error& error) {
      failure = failure_of(error);
      own_words = true;
    } catch (const std::exception& error) {
      failure.detail = error.what();
    } catch (...) {
      failure.detail = "an exception that is no std::exception";
    }
  }
  const FlightBoard* board = terminate_state.board;
  if (board == nullptr) {
    // The rank couldn't join: the error's text says why, and a core dump would add nothing.
    if (own_words) {
      say(fmt::format("tsp: {}\n", failure.detail));
      ::_exit(failure.cause == Cause::refused ? kRefusedCode : 1);
    }
    if (earlier_handler != nullptr) earlier_handler();
    std::abort();
  }
  const bool job_was_over = board->aborted();
  say(fmt::format("rank {}: {}: {}\n", terminate_state.rank, job_was_over ? "ended with the job" : "uncaught exception",
                  failure.detail));
  if (job_was_over) ::_exit(1);  // the cause is another rank's; no core dump for this one
  board->note_first_error(terminate_state.rank, failure);
  if (own_words && failure.cause == Cause::refused) ::_exit(1);  // the user's mistake: no core dump
  std::abort();
}

}  // namespace

void catch_uncaught_early() {
  const std::terminate_handler before = std::set_terminate(on_terminate);
  if (before != on_terminate) earlier_handler = before;
}

void report_uncaught(const shm::NodeMemory& memory, int rank) {
  // A second mapping that is never unmapped: the handler may run after the context is gone.
  static std::optional<shm::NodeMemory> kept;
  kept.emplace(shm::NodeMemory::attach(posix::UniqueFd(::dup(memory.descriptor()))));
  static std::optional<FlightBoard> board;
  board.emplace(*kept);
  terminate_state = {.board = &*board, .rank = rank};
  std::set_terminate(on_terminate);
}

}  // namespace tsprun::detail
