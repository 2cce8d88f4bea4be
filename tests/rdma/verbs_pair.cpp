// Exchanges files with the other side, and drives the transport until a condition holds or time runs out.
#include "tests/rdma/verbs_pair.h"

#include "transport/posix.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>

namespace tsprun::detail::test {

namespace {

constexpr int kPeer = 0;                        // the only one
constexpr std::uint32_t kOpening = 0xffffffff;  // a sequence number that scenarios don't use

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  require(text != nullptr, std::string(name) + " isn't set: this program runs in tools/rdma_lab");
  return text;
}

std::string in_share(const std::string& name) { return variable("SHARE") + "/" + name; }

std::string file_of(const std::string& name, int of_node) { return in_share(name + "." + std::to_string(of_node)); }

/// Publishes a file whole.
void publish(const std::string& name, const std::vector<char>& mine) {
  const std::string own = file_of(name, node());
  std::ofstream(own + ".new", std::ios::binary).write(mine.data(), static_cast<std::streamsize>(mine.size()));
  std::filesystem::rename(own + ".new", own);
}

/// Publishes a file, and waits for the other side's.
std::vector<char> exchange(const std::string& name, const std::vector<char>& mine, double seconds = 300) {
  const std::string other = file_of(name, 1 - node());
  publish(name, mine);
  const std::uint64_t begin = posix::now_ns();
  while (!std::filesystem::exists(other)) {
    require(static_cast<double>(posix::now_ns() - begin) < seconds * 1e9, "the other machine didn't come to " + name);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::ifstream file(other, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns a value of --rdma with the settings that all pairs shall have.
std::string with_settings(const std::string& device) {
  const char* settings = std::getenv("RDMA_SETTINGS");
  if (settings == nullptr || *settings == '\0') return device;
  return device.empty() ? settings : device + "," + settings;
}

std::span<std::byte> reserve(std::size_t bytes) {
  void* place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(place != MAP_FAILED, "mmap failed");
  return {static_cast<std::byte*>(place), bytes};
}

std::uint64_t word(std::uint64_t seed, std::size_t i) {
  std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 29;
  return x * 0x94d049bb133111ebULL;
}

}  // namespace

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

int node() { return std::stoi(variable("NODE")); }

void weather(const std::string& line) {
  std::ofstream(in_share("control"), std::ios::app) << line << std::endl;
  std::ifstream file(in_share("control"));
  const auto lines = std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  const auto obeyed = [] {
    std::ptrdiff_t count = 0;
    std::ifstream(in_share("obeyed")) >> count;
    return count;
  };
  const std::uint64_t begin = posix::now_ns();
  while (obeyed() < lines) {
    require(posix::now_ns() - begin < 300'000'000'000, "the laboratory doesn't obey " + line);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void run_shell(const std::string& command) { require(std::system(command.c_str()) == 0, command); }

VerbsPair::VerbsPair(const std::string& name, const PairOptions& options)
    : name_(name),
      heap_(reserve(options.heap_bytes)),
      transport_({.device = with_settings(options.device),
                  .local_rank = options.local_rank,
                  .local_ranks = options.local_ranks,
                  .timeout_ns = static_cast<std::uint64_t>(options.timeout_s * 1e9),
                  .peers = 1,
                  .heap = heap_}) {
  require(transport_.why_not().empty(), transport_.why_not());
  transport_.register_memory(heap_);
  const std::vector<std::byte> blob = transport_.address(kPeer);
  const auto* data = reinterpret_cast<const char*>(blob.data());
  const std::vector<char> other = exchange(name_ + ".address", {data, data + blob.size()});
  const std::span<const std::byte> address = std::as_bytes(std::span(other));
  require(transport_.can_reach(kPeer, address).possible, transport_.can_reach(kPeer, address).why);
  transport_.connect(kPeer, address);
  meet();
  until(
      [&] {
        require(transport_.broken(kPeer).empty(), transport_.broken(kPeer));
        return transport_.connected(kPeer);
      },
      "the probe arrives");
}

VerbsPair::~VerbsPair() = default;  // the heap stays mapped: the transport is destroyed after this body

void VerbsPair::meet() { exchange(name_ + ".meeting" + std::to_string(meetings_++), {}); }

void VerbsPair::meet_moving() {
  const std::string name = name_ + ".meeting" + std::to_string(meetings_++);
  publish(name, {});
  until([&] { return std::filesystem::exists(file_of(name, 1 - node())); }, "the other machine comes to " + name);
}

void VerbsPair::until(const std::function<bool()>& condition, const std::string& what, double seconds) {
  constexpr std::uint32_t kRoundsPerClock = 256;
  const std::uint64_t begin = posix::now_ns();
  std::uint64_t quiet_since = begin;
  bool moved = false;
  for (std::uint32_t rounds = 1; !condition(); ++rounds) {
    moved = transport_.progress() || moved;
    if (rounds % kRoundsPerClock != 0) continue;
    const std::uint64_t now = posix::now_ns();
    if (static_cast<double>(now - begin) > seconds * 1e9) throw std::runtime_error("never: " + what);
    if (moved) quiet_since = now;
    moved = false;
    if (now - quiet_since < spin_ns_) continue;
    transport_.arm();
    if (!transport_.progress() && !condition()) {
      pollfd ready{transport_.descriptor(), POLLIN, 0};
      ::poll(&ready, 1, 100);
    }
    transport_.disarm();
    quiet_since = posix::now_ns();
  }
}

void VerbsPair::open(Stream stream) {
  const Ticket posted = receive(stream, envelope_of(kOpening), {});
  finish_send(stream, send(stream, envelope_of(kOpening), {}));
  finish_receive(stream, posted);
}

Ticket VerbsPair::send(Stream stream, const Envelope& envelope, std::span<const std::byte> payload) {
  Ticket ticket = kNotNow;
  until(
      [&] {
        return (ticket = transport_.send({kPeer, stream}, envelope, payload, Delivery::copy_if_small)) != kNotNow;
      },
      "a credit to send");
  return ticket;
}

Ticket VerbsPair::receive(Stream stream, const Envelope& envelope, std::span<std::byte> into) {
  Ticket ticket = kNotNow;
  until([&] { return (ticket = transport_.receive({kPeer, stream}, envelope, into)) != kNotNow; }, "room to post a receive");
  return ticket;
}

void VerbsPair::finish_send(Stream stream, Ticket ticket) {
  Outcome outcome = Outcome::pending;
  until([&] { return (outcome = transport_.test_send({kPeer, stream}, ticket)) != Outcome::pending; }, "the end of a send");
  require(outcome == Outcome::done, "send " + std::to_string(ticket) + ": " + transport_.found({kPeer, stream}).detail);
}

void VerbsPair::finish_receive(Stream stream, Ticket ticket) {
  Outcome outcome = Outcome::pending;
  until([&] { return (outcome = transport_.test_receive({kPeer, stream}, ticket)) != Outcome::pending; }, "the end of a receive");
  require(outcome == Outcome::done, "receive " + std::to_string(ticket) + ": outcome " +
                                        std::to_string(static_cast<int>(outcome)) + ", " +
                                        transport_.found({kPeer, stream}).detail);
}

void VerbsPair::close() {
  until([&] { return transport_.close(kPeer); }, "all that was sent has arrived");
  meet();
}

// Both go word by word, since emulated machines compute slowly.
void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t of_seed = word(seed, at / sizeof of_seed);
    std::memcpy(bytes.data() + at, &of_seed, std::min(sizeof of_seed, bytes.size() - at));
  }
}

bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t of_seed = word(seed, at / sizeof of_seed);
    if (std::memcmp(bytes.data() + at, &of_seed, std::min(sizeof of_seed, bytes.size() - at)) != 0) return false;
  }
  return true;
}

}  // namespace tsprun::detail::test
