// Steps programs in the order of virtual time.
#include "core/virtual/player.h"

#include "core/virtual/played_rank.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

namespace tsprun::detail {

namespace {

// Events: a kernel is over, or a rank has news of its operations.
constexpr std::uint64_t kGoOn = 0;
constexpr std::uint64_t kNews = 1;
constexpr std::uint64_t kKinds = 2;

class Player final : public sim::Handler {
 public:
  Player(std::span<const Program> programs, const PlayOptions& options)
      : options_(options),
        board_(shm::NodeMemory::create_memfd(
            {.heap_bytes = std::uint64_t{1} << 20, .world_size = static_cast<std::uint32_t>(options.ranks)})),
        fabric_(timeline_, options.fabric),
        world_{.timeline = timeline_,
               .fabric = fabric_,
               .ranks = options.ranks,
               .unit = static_cast<int>(programs.size()),
               .ranks_per_node = options.fabric.ranks_per_node,
               .wake = [this](int rank) { wake(rank); }} {
    world_.make_transports();
    for (int rank = 0; rank < world_.unit; ++rank) {
      states_.push_back({.rank = std::make_unique<PlayedRank>(world_, rank, programs[static_cast<std::size_t>(rank)], board_)});
    }
  }

  PlayedRun run() {
    for (std::size_t rank = 0; rank < states_.size(); ++rank) timeline_.add(0, *this, rank * kKinds + kGoOn);
    while (timeline_.step()) {
    }
    refuse_deadlock();
    PlayedRun result;
    result.links = fabric_.links();
    result.messages = world_.messages;
    result.events = timeline_.added();
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      PlayedTimes times = states_[rank].times;
      times.traffic = world_.transports[rank]->counters();
      result.seconds = std::max(result.seconds, times.seconds);
      result.ranks.push_back(times);
    }
    return result;
  }

 private:
  struct State {
    std::unique_ptr<PlayedRank> rank;
    std::size_t next = 0;  // item
    int steps = 0;         // played to their end
    bool waits = false;
    std::uint8_t stream = 0;   // of the operation that it waits for
    std::uint64_t number = 0;  // of that operation
    double waits_since = 0;
    bool hears = false;  // an event kNews is on its way
    bool done = false;
    PlayedTimes times{};
  };

  void wake(int rank) {
    State& state = states_[static_cast<std::size_t>(rank)];
    if (state.hears) return;
    state.hears = true;
    timeline_.add(0, *this, static_cast<std::uint64_t>(rank) * kKinds + kNews);
  }

  void happen(std::uint64_t what) override {
    State& state = states_[what / kKinds];
    if (what % kKinds == kNews) {
      state.hears = false;
      state.rank->engine().exhaust();
      if (!state.waits || !state.rank->is_complete(state.stream, state.number)) return;
      state.waits = false;
      state.times.exposed += timeline_.now() - state.waits_since;
    }
    go_on(what / kKinds);
  }

  /// Does items until one takes time.
  void go_on(std::size_t rank) {
    State& state = states_[rank];
    PlayedRank& played = *state.rank;
    const Program& program = played.program();
    for (;;) {
      if (state.next == program.items.size()) {
        if (++state.steps == options_.steps) {
          state.done = true;
          state.times.seconds = timeline_.now();
          return;
        }
        state.next = 0;
        played.begin_again();
      }
      const ProgramItem& item = program.items[state.next++];
      switch (item.kind) {
        case ItemKind::kernel: {
          const double seconds = options_.price(program.costs[item.index]);
          state.times.compute += seconds;
          timeline_.add(seconds, *this, rank * kKinds + kGoOn);
          return;
        }
        case ItemKind::post:
          played.post(item);
          played.engine().exhaust();
          if (options_.blocking && begins_to_wait(state, item)) return;
          break;
        case ItemKind::call:
          played.post(item);
          played.engine().exhaust();
          if (begins_to_wait(state, item)) return;
          break;
        case ItemKind::wait:
          if (begins_to_wait(state, item)) return;
          break;
        case ItemKind::take:
        case ItemKind::give: break;
      }
    }
  }

  /// Returns true if the item's operation isn't complete; the rank then waits for it.
  bool begins_to_wait(State& state, const ProgramItem& item) {
    if (state.rank->is_complete(item.stream, item.amount)) return false;
    state.waits = true;
    state.stream = item.stream;
    state.number = item.amount;
    state.waits_since = timeline_.now();
    return true;
  }

  void refuse_deadlock() {
    constexpr int kMostNamed = 4;
    std::string who;
    int stuck = 0;
    int first = -1;
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      const State& state = states_[rank];
      if (state.done) continue;
      if (first < 0) first = static_cast<int>(rank);
      if (++stuck > kMostNamed) continue;
      who += fmt::format("{}rank {} waits in {}", stuck == 1 ? "" : "; ", rank,
                         state.rank->describe_wait(state.stream, state.number));
    }
    if (stuck == 0) return;
    if (stuck > kMostNamed) who += fmt::format("; and {} more", stuck - kMostNamed);
    throw Error(Cause::deadlock,
                fmt::format("ranks wait for what never comes, {:.6f} s after the beginning: {}", timeline_.now(), who), first);
  }

  const PlayOptions& options_;
  shm::NodeMemory board_;  // every played rank writes its own page
  sim::Timeline timeline_;
  sim::Fabric fabric_;
  sim::SimWorld world_;
  std::vector<State> states_;
};

}  // namespace

PlayedRun play(std::span<const Program> programs, const PlayOptions& options) {
  if (programs.empty() || options.ranks % static_cast<int>(programs.size()) != 0 ||
      options.fabric.ranks != static_cast<int>(programs.size())) {
    throw Error(Cause::refused, fmt::format("{} programs can't stand for {} ranks on a fabric of {}", programs.size(),
                                            options.ranks, options.fabric.ranks));
  }
  return Player(programs, options).run();
}

}  // namespace tsprun::detail
