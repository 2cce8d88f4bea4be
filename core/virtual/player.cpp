// Steps programs in the order of virtual time.
#include "core/virtual/player.h"

#include "core/virtual/played_rank.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

namespace tsprun::detail {

namespace {

// Events: a rank begins, may have ended its kernel, or has news of its operations.
constexpr std::uint64_t kBegin = 0;
constexpr std::uint64_t kKernel = 1;
constexpr std::uint64_t kNews = 2;
constexpr std::uint64_t kKinds = 3;

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
    if (options.copies_slow_kernels > 1) world_.moves = [this](int rank, int change) { moves(rank, change); };
    world_.make_transports();
    for (int rank = 0; rank < world_.unit; ++rank) {
      State& state = states_.emplace_back();
      state.rank = std::make_unique<PlayedRank>(world_, rank, programs[static_cast<std::size_t>(rank)], board_);
      if (!options.trace) continue;
      state.trace = std::make_unique<TraceRecorder>(timeline_);
      state.rank->engine().observe(state.trace.get());
    }
  }

  PlayedRun run() {
    for (std::size_t rank = 0; rank < states_.size(); ++rank) timeline_.add(0, *this, rank * kKinds + kBegin);
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
      std::unique_ptr<TraceRecorder>& trace = states_[rank].trace;
      if (trace == nullptr) continue;
      states_[rank].rank->engine().observe(nullptr);
      result.traces.push_back({.events = trace->events(), .memory = trace->memory(), .left_out = trace->left_out()});
      trace.reset();  // before the next is copied
    }
    return result;
  }

 private:
  struct State {
    std::unique_ptr<TraceRecorder> trace;  // null: none; outlives the engine that it observes
    std::unique_ptr<PlayedRank> rank;
    std::size_t next = 0;  // item
    int steps = 0;         // played to their end
    bool waits = false;
    std::uint8_t stream = 0;   // of the operation that it waits for
    std::uint64_t number = 0;  // of that operation
    double waits_since = 0;
    TraceEvent wait{};  // the wait, as the trace shows it
    // The kernel that it computes.
    bool computes = false;
    double began_at = 0;
    double left = 0;  // seconds of its work, at the time of the last change
    double changed_at = 0;
    double ends_at = 0;
    int moving = 0;        // messages that it sends or receives, if they slow kernels
    CategoryBytes held{};  // by the schedule, if there is a trace
    bool hears = false;    // an event kNews is on its way
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
    switch (what % kKinds) {
      case kNews:
        state.hears = false;
        state.rank->engine().exhaust();
        if (!state.waits || !state.rank->is_complete(state.stream, state.number)) return;
        state.waits = false;
        state.times.exposed += timeline_.now() - state.waits_since;
        note(state, state.wait);
        break;
      case kKernel:
        if (!state.computes || timeline_.now() < state.ends_at) return;  // its speed has changed since the event was added
        state.computes = false;
        state.times.compute += timeline_.now() - state.began_at;
        note_kernel(state);
        break;
      default: break;
    }
    go_on(what / kKinds);
  }

  static std::uint64_t in_ns(double seconds) { return static_cast<std::uint64_t>(std::llround(seconds * 1e9)); }

  /// Adds an event that ends now to the rank's trace, if it has one.
  void note(State& state, TraceEvent event) {
    if (state.trace == nullptr) return;
    event.end_ns = timeline_.now_ns();
    state.trace->add(event);
  }

  void note_kernel(State& state) {
    const Program& program = state.rank->program();
    const KernelCost& cost = program.costs[program.items[state.next - 1].index];
    note(state, {.begin_ns = in_ns(state.began_at), .name = cost.kernel, .flops = cost.flops});
  }

  /// Counts the memory that an item takes or gives back.
  void hold(State& state, const ProgramItem& item) {
    if (state.trace == nullptr) return;
    std::uint64_t& of = state.held.of[item.index];
    const bool takes = item.kind == ItemKind::take;
    of = takes ? of + item.amount : of - item.amount;
    state.held.total = takes ? state.held.total + item.amount : state.held.total - item.amount;
    state.trace->sample(state.held);
  }

  /// Sets when the rank's kernel ends, at its speed from now on.
  void run_kernel(std::size_t rank) {
    State& state = states_[rank];
    const double seconds = state.left * slowness(state);
    state.changed_at = timeline_.now();
    state.ends_at = timeline_.now() + seconds;
    timeline_.add(seconds, *this, rank * kKinds + kKernel);
  }

  double slowness(const State& state) const { return state.moving > 0 ? options_.copies_slow_kernels : 1; }

  /// Counts the messages that a rank moves; a kernel changes its speed with the first and after the last.
  void moves(int rank, int change) {
    State& state = states_[static_cast<std::size_t>(rank)];
    const double before = slowness(state);
    state.moving += change;
    if (!state.computes || slowness(state) == before) return;
    state.left = std::max(0.0, state.left - (timeline_.now() - state.changed_at) / before);
    run_kernel(static_cast<std::size_t>(rank));
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
      if (state.next == 0) state.held = program.held_at_begin;
      const ProgramItem& item = program.items[state.next++];
      switch (item.kind) {
        case ItemKind::kernel: {
          state.computes = true;
          state.began_at = timeline_.now();
          state.left = options_.price(static_cast<int>(rank), program.costs[item.index]);
          run_kernel(rank);
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
        case ItemKind::give: hold(state, item); break;
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
    state.wait = {.begin_ns = timeline_.now_ns(), .name = "wait"};
    if (const Operation* running = state.rank->engine().running(static_cast<Stream>(item.stream)); running != nullptr) {
      state.wait.waited_for = running->waiting_for();
      state.wait.waited_op = running->info().op;
      state.wait.sequence = running->info().group_sequence;
    }
    return true;
  }

  /// Throws an error if a rank waits for what never comes, or has sent what nobody receives.
  void refuse_deadlock() {
    constexpr int kMostNamed = 4;
    std::string who;
    int stuck = 0;
    int first = -1;
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      State& state = states_[rank];
      const int sender = world_.transports[rank]->unread();
      if (state.done && sender < 0 && state.rank->engine().idle()) continue;
      if (first < 0) first = static_cast<int>(rank);
      if (++stuck > kMostNamed) continue;
      if (stuck > 1) who += "; ";
      if (!state.done) who += fmt::format("rank {} waits in {}", rank, state.rank->describe_wait(state.stream, state.number));
      else if (sender >= 0) who += fmt::format("rank {} never receives a message of rank {}", rank, sender);
      else who += fmt::format("rank {} leaves an operation incomplete", rank);
    }
    if (stuck == 0) return;
    if (stuck > kMostNamed) who += fmt::format("; and {} more", stuck - kMostNamed);
    throw Error(Cause::deadlock, fmt::format("{:.6f} s after the beginning nothing moves any more: {}", timeline_.now(), who),
                first);
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
  const int played = static_cast<int>(programs.size());
  const sim::FabricShape& fabric = options.fabric;
  const auto refuse = [](const std::string& why) { throw Error(Cause::refused, "these programs can't be played: " + why); };
  if (played == 0 || fabric.ranks != played || options.ranks < played || options.ranks % played != 0) {
    refuse(fmt::format("{} programs don't stand for {} ranks on a fabric of {}", played, options.ranks, fabric.ranks));
  }
  if (fabric.ranks_per_node < 1 || fabric.nics_per_node < 1) {
    refuse(fmt::format("nodes of {} ranks and {} NICs", fabric.ranks_per_node, fabric.nics_per_node));
  }
  if (options.ranks > played && played % fabric.ranks_per_node != 0) {
    refuse(
        fmt::format("{} programs aren't whole nodes of {} ranks, so they can't stand for others", played, fabric.ranks_per_node));
  }
  if (options.steps < 1 || !options.price)
    refuse(fmt::format("{} steps, and {} prices", options.steps, options.price ? "with" : "no"));
  return Player(programs, options).run();
}

}  // namespace tsprun::detail
