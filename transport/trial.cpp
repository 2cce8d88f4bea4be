// Moves 1 MiB between two ends of one process.
#include "transport/trial.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace tsprun::detail::trial {

namespace {

constexpr Envelope kEnvelope{0x7472'6961'6c00'0001, 1, 1, Purpose::other};

bool done(Outcome outcome, const Transport& transport, LaneId lane) {
  if (outcome != Outcome::pending && outcome != Outcome::done) throw Error(Cause::disconnected, transport.found(lane).detail);
  return outcome == Outcome::done;
}

}  // namespace

posix::Mapping map() {
  posix::Mapping memory(2 * kTrialBytes);
  if (!memory) throw system_error(Cause::out_of_memory, fmt::format("{} bytes of memory", 2 * kTrialBytes), errno);
  return memory;
}

void until(const std::function<bool()>& condition, const std::string& what) {
  const std::uint64_t deadline = posix::now_ns() + kDeadline_ns;
  while (!condition()) {
    if (posix::now_ns() >= deadline) throw Error(Cause::stalled, fmt::format("{} took longer than 5 s", what));
    posix::sleep_ns(50'000);
  }
}

void exchange(End sender, End receiver, const posix::Mapping& memory) {
  const std::span<std::byte> from = memory.bytes().first(kTrialBytes);
  const std::span<std::byte> into = memory.bytes().last(kTrialBytes);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 131 >> 3);
  const LaneId out{sender.peer, Stream::control};
  const LaneId in{receiver.peer, Stream::control};
  const Ticket posted = receiver.transport.receive(in, kEnvelope, into);
  Ticket sent = kNotNow;
  bool arrived = false;
  bool gone = false;
  until(
      [&] {
        sender.transport.progress();
        receiver.transport.progress();
        if (sent == kNotNow) sent = sender.transport.send(out, kEnvelope, from, Delivery::by_reference);
        if (sent == kNotNow) return false;
        arrived = arrived || done(receiver.transport.test_receive(in, posted), receiver.transport, in);
        gone = gone || done(sender.transport.test_send(out, sent), sender.transport, out);
        return arrived && gone;
      },
      "a message of 1 MiB");
  if (!std::equal(from.begin(), from.end(), into.begin())) throw Error(Cause::corrupt, "1 MiB arrived damaged");
}

}  // namespace tsprun::detail::trial
