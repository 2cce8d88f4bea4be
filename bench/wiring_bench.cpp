// Plays the store's side of ranks that meet: a server, and a client for each rank, each with the keys and requests that
// core/links.cpp makes where ranks look for RDMA and for TCP, but without NICs and connections among ranks. A node is a process,
// a rank one of its threads. Prints one line of JSON.
//
//   wiring_bench RANKS NODES [plain] [lost]       `plain`: without TLS; `lost`: RDMA looks up and carries nothing, so that each
//                                                 rank tells each other why it is lost
#include "transport/bootstrap/placement.h"
#include "transport/bootstrap/secret.h"
#include "transport/bootstrap/store.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::bench {
namespace {

constexpr std::uint64_t kTimeout_ns = 60'000'000'000;
/// Bytes of addresses and words as they are over RDMA and TCP.
constexpr std::size_t kVerbsOwn = 8;
constexpr std::size_t kVerbsAddress = 140;
constexpr std::size_t kLostOwn = 1;  // core/link_words.h
constexpr std::size_t kLostReason = 60;
constexpr std::size_t kTcpAddress = 48;
constexpr std::size_t kWay = 120;

/// Board that nodes and the server share. Times are CLOCK_MONOTONIC.
struct Board {
  std::atomic<int> connected;
  std::atomic<int> done;
  std::atomic<int> failed;
  int gate[2];  ///< a pipe: ranks that are connected read from it, and go on when the server closes its other end
};

bool written_by(const std::vector<std::byte>& value, std::size_t bytes, int rank) {
  return value.size() == bytes && (bytes == 0 || (value.front() == std::byte(rank) && value.back() == std::byte(rank)));
}

/// How it is played.
struct Play {
  bool with_tls = true;
  bool lost = false;
};

/// A rank: leaves its words, and gathers those of all others.
void be_rank(int rank, int ranks, int first, int count, const std::string& store, const tls::Credentials& credentials, bool lost,
             Board& board) {
  bootstrap::StoreClient client(store, credentials, rank, kTimeout_ns);
  board.connected.fetch_add(1);
  char nothing = 0;
  if (::read(board.gate[0], &nothing, 1) != 0) throw std::runtime_error("the pipe can't be read");
  std::vector<int> others;
  for (int other = 0; other < ranks; ++other) {
    if (other < first || other >= first + count) others.push_back(other);
  }
  struct Stage {
    std::string_view prefix;
    std::size_t own;  ///< bytes for each rank, of which each reads its own
    std::size_t bytes;
  };
  const std::size_t own = lost ? kLostOwn : 0;
  const std::size_t reason = lost ? kLostReason : 0;
  for (const Stage& stage : std::array<Stage, 4>{{{"verbs/", kVerbsOwn, kVerbsAddress},
                                                  {"verbs/linked/", own, reason},
                                                  {"verbs/probed/", own, reason},
                                                  {"tcp/", 0, kTcpAddress}}}) {
    const std::size_t table = stage.own * static_cast<std::size_t>(ranks);
    client.set(fmt::format("{}{}", stage.prefix, rank), std::vector<std::byte>(table + stage.bytes, std::byte(rank)));
    const bootstrap::GatherCut cut{.from = static_cast<std::uint32_t>(stage.own) * static_cast<std::uint32_t>(rank),
                                   .bytes = static_cast<std::uint32_t>(stage.own),
                                   .rest = static_cast<std::uint32_t>(table)};
    const auto values = client.gather(
        std::string(stage.prefix), others, [](int other) { return fmt::format("rank {}", other); }, cut);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (!written_by(values[i], stage.own + stage.bytes, others[i]))
        throw std::runtime_error("a value isn't what its rank has written");
    }
  }
  const std::string way = fmt::format("live/way/{}", rank);
  client.set(way, std::vector<std::byte>(kWay, std::byte(rank)));
  client.get(way, "the store to repeat what it was told");
}

[[noreturn]] void be_node(int node, int nodes, int ranks, const std::string& store, const tls::Credentials& credentials,
                          bool lost, Board& board) {
  const bootstrap::RankBlock block = bootstrap::block_of(ranks, nodes, node);
  std::vector<std::thread> threads;
  for (int rank = block.first; rank < block.first + block.count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        be_rank(rank, ranks, block.first, block.count, store, credentials, lost, board);
      } catch (const std::exception& error) {
        if (board.failed.fetch_add(1) == 0) std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      board.done.fetch_add(1);
    });
  }
  for (std::thread& each : threads) each.join();
  std::_Exit(0);
}

int run(int ranks, int nodes, const Play& play) {
  void* shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto& board = *new (shared) Board{};
  const tls::Credentials credentials{bootstrap::secret_from_text("of this measurement"), play.with_tls};
  if (::pipe2(board.gate, O_CLOEXEC) != 0) return 1;
  bootstrap::StoreServer server("127.0.0.1", 0, credentials);
  const std::uint64_t began = posix::now_ns();
  for (int node = 0; node < nodes; ++node) {
    if (::fork() != 0) continue;
    ::close(board.gate[1]);
    be_node(node, nodes, ranks, server.address(), credentials, play.lost, board);
  }
  std::uint64_t connected = 0;
  std::uint64_t requests = 0;
  while (board.done.load() < ranks) {
    pollfd watched{server.descriptor(), POLLIN, 0};
    ::poll(&watched, 1, 1);
    server.pump();
    if (connected == 0 && board.connected.load() == ranks) {
      connected = posix::now_ns();
      ::close(board.gate[1]);
    }
    if (posix::now_ns() - began > kTimeout_ns) {
      std::fprintf(stderr, "not all ranks have ended in time\n");
      return 1;
    }
  }
  const std::uint64_t ended = posix::now_ns();
  requests = server.requests();
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  while (::wait(nullptr) > 0) {
  }
  std::printf("%s\n", fmt::format("{{\"ranks\": {}, \"nodes\": {}, \"tls\": {}, \"lost\": {}, \"connect_s\": {:.3f}, \"wire_s\": "
                                  "{:.3f}, \"requests\": {}, "
                                  "\"keys\": {}, \"store_mib\": {}}}",
                                  ranks, nodes, play.with_tls, play.lost, static_cast<double>(connected - began) * 1e-9,
                                  static_cast<double>(ended - connected) * 1e-9, requests, server.keys(), used.ru_maxrss / 1024)
                          .c_str());
  return board.failed.load() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tsprun::detail::bench

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "wiring_bench RANKS NODES [plain] [lost]\n");
    return 2;
  }
  const int ranks = std::atoi(arguments[1]);
  const int nodes = std::atoi(arguments[2]);
  if (ranks < 1 || nodes < 1 || nodes > ranks) {
    std::fprintf(stderr, "wiring_bench: %s ranks on %s nodes can't be\n", arguments[1], arguments[2]);
    return 2;
  }
  tsprun::detail::bench::Play play;
  for (int i = 3; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "plain") play.with_tls = false;
    else if (word == "lost") play.lost = true;
  }
  return tsprun::detail::bench::run(ranks, nodes, play);
}
