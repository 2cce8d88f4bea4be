// Steps programs in the order of virtual time.
#include "core/virtual/player.h"

#include "core/virtual/played_rank.h"
#include "core/virtual/played_state.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tsprun::detail {

namespace {

// Events: a rank begins, may have ended its kernel or its chores, has news of its operations, or its kernel ticks.
constexpr std::uint64_t kBegin = 0;
constexpr std::uint64_t kWork = 1;
constexpr std::uint64_t kNews = 2;
constexpr std::uint64_t kTick = 3;
constexpr std::uint64_t kKinds = 4;

sim::UnitGrid grid_of(int played, const PlayOptions& options) {
  return {.unit = played, .along = options.units.empty() ? std::vector<int>{options.ranks / played} : options.units};
}

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
               .grid = grid_of(static_cast<int>(programs.size()), options),
               .ranks_per_node = options.fabric.ranks_per_node,
               .wake = [this](int rank, Stream stream) { wake(rank, stream); }} {
    if (options.copies_slow_kernels > 1) world_.moves = [this](int rank, int change) { moves(rank, change); };
    if (options.cores) {
      world_.chore_seconds = [this](const Chores& chores) { return options_.cores->seconds_of(chores) * crowding(); };
    }
    world_.make_transports();
    for (const auto& transport : world_.transports) transport->chores().in_pieces = options.cores.has_value();
    if (options.trace) fabric_.observe(&rates_.emplace(fabric_.links().size()));
    for (int rank = 0; rank < world_.grid.unit; ++rank) {
      State& state = states_.emplace_back();
      state.rank = std::make_unique<PlayedRank>(world_, rank, programs[static_cast<std::size_t>(rank)], board_);
      if (options.tasks) {
        state.graph = std::make_unique<TaskGraph>(state.rank->engine());
        world_.transports[static_cast<std::size_t>(rank)]->observe(*state.graph);
      }
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
      if (states_[rank].graph != nullptr) result.tasks.push_back(states_[rank].graph->take());
      std::unique_ptr<TraceRecorder>& trace = states_[rank].trace;
      if (trace == nullptr) continue;
      states_[rank].rank->engine().observe(nullptr);
      result.traces.push_back({.events = trace->events(), .memory = trace->memory(), .left_out = trace->left_out()});
      trace.reset();  // before the next is copied
    }
    for (std::size_t link = 0; rates_ && link < result.links.size(); ++link) {
      if (result.links[link].bytes == 0) continue;
      result.tracks.push_back({.link = link, .name = fabric_.describe(link), .bytes = rates_->of(link)});
      result.slice_seconds = rates_->width();
    }
    return result;
  }

 private:
  using State = PlayedState;

  void wake(int rank, Stream stream) {
    State& state = states_[static_cast<std::size_t>(rank)];
    const bool hears = state.streams_with_news != 0;
    state.streams_with_news |= 1U << static_cast<unsigned>(stream);
    if (hears) return;
    timeline_.add(0, *this, static_cast<std::uint64_t>(rank) * kKinds + kNews);
  }

  void happen(std::uint64_t what) override {
    const std::size_t rank = what / kKinds;
    State& state = states_[rank];
    switch (what % kKinds) {
      case kNews:
        if (options_.cores) {
          state.streams_with_news = 0;
          return hear(rank);
        }
        for (std::uint32_t left = std::exchange(state.streams_with_news, 0); left != 0; left &= left - 1)
          state.rank->engine().exhaust(static_cast<Stream>(std::countr_zero(left)));
        if (!state.waits || !state.rank->is_complete(state.stream, state.number)) return;
        end_wait(state);
        break;
      case kWork:
        if (timeline_.now() != state.event_at) return;  // another was added after it, for an earlier time
        state.event_at = State::kNever;
        if (!state.works) return;
        if (timeline_.now() < state.ends_at) return await_end(rank);  // it has become slower since the event was added
        leave_core(state);
        if (state.chores) break;
        state.times.compute += timeline_.now() - state.began_at - state.in_ticks;
        state.note_kernel(timeline_);
        if (state.news && goes_to_work(rank, look(state))) return;
        break;
      case kTick: return tick(rank);
      default: break;
    }
    go_on(rank);
  }

  void end_wait(State& state) {
    state.waits = false;
    state.times.exposed += timeline_.now() - state.waits_since;
    if (state.graph != nullptr) state.graph->waited(state.stream, state.number);
    state.note(state.wait, timeline_);
  }

  // --- cores: what a rank's core does besides kernels

  /// Returns how many times longer everything takes because ranks share cores.
  double crowding() const { return options_.cores ? std::max(1.0, static_cast<double>(working_) / options_.cores->cores) : 1; }

  /// Returns the seconds of the chores that came up in this event, which the core has yet to do.
  double chores_of(State& state) {
    Chores& chores = world_.transports[static_cast<std::size_t>(&state - states_.data())]->chores();
    const double seconds = options_.cores->seconds_of(chores);
    chores = {.in_pieces = true};
    return seconds;
  }

  /// Lets operations go on as far as one look does; returns the seconds of the chores.
  double look(State& state) {
    state.news = state.rank->engine().advance();
    return chores_of(state);
  }

  /// Lets the rank's core do chores; returns false if there are none.
  bool goes_to_work(std::size_t rank, double seconds) {
    if (seconds == 0) return false;
    states_[rank].chores = true;
    take_core(rank, seconds);
    return true;
  }

  void hear(std::size_t rank) {
    State& state = states_[rank];
    state.news = true;
    if (state.works) {
      if (!state.chores) await_tick(rank);
    } else if (state.waits) {
      go_on(rank);
    } else if (state.done) {
      state.rank->engine().exhaust();
    }
  }

  /// Adds the event of the kernel's next tick, if it comes before the kernel's end.
  void await_tick(std::size_t rank) {
    State& state = states_[rank];
    if (state.ticking) return;
    constexpr double kNearly = 1e-6;  // of a tick: a tick that is now has been
    const double from = std::max(timeline_.now(), state.resumes_at);
    const double done = from - state.began_at - state.in_ticks;
    const double next = from + (std::floor(done / state.tick_seconds + kNearly) + 1) * state.tick_seconds - done;
    if (next >= state.ends_at) return;
    state.ticking = true;
    timeline_.add(next - timeline_.now(), *this, rank * kKinds + kTick);
  }

  /// Interrupts the rank's kernel for a look at its operations.
  void tick(std::size_t rank) {
    State& state = states_[rank];
    state.ticking = false;
    if (!state.works || state.chores || !state.news) return;
    const double before = slowness(state);
    const double seconds = look(state);
    state.in_ticks += seconds * crowding();
    state.resumes_at = timeline_.now() + seconds * crowding();
    slow_down(rank, before, seconds);
    if (state.news) await_tick(rank);
  }

  /// Returns true if the wait is over, else lets the core do what it can meanwhile.
  bool waited(std::size_t rank) {
    State& state = states_[rank];
    while (!state.rank->has_completed(state.stream, state.number)) {
      if (goes_to_work(rank, look(state)) || !state.news) return false;
    }
    state.rank->is_complete(state.stream, state.number);  // gives back what the operation holds
    end_wait(state);
    return true;
  }

  // --- work that takes time

  /// Lets a rank work, at the speed that it has among those that work now, once `until_started` seconds have passed.
  void take_core(std::size_t rank, double seconds, double until_started = 0) {
    State& state = states_[rank];
    const double before = crowding();
    ++working_;
    state.works = true;
    state.began_at = timeline_.now();
    state.in_ticks = state.resumes_at = 0;
    state.left = seconds;
    state.until_started = until_started;
    run_work(rank);
    change_crowding(before, rank);
  }

  void leave_core(State& state) {
    const double before = crowding();
    --working_;
    state.works = false;
    change_crowding(before, states_.size());
  }

  /// Gives all ranks that work the speed of now; but for one, that has it.
  void change_crowding(double before, std::size_t but) {
    const double now = crowding();
    if (now == before) return;
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      if (rank != but && states_[rank].works) slow_down(rank, slowness(states_[rank]) / now * before);
    }
  }

  /// Sets when the rank's work ends, at its speed from now on.
  void run_work(std::size_t rank) {
    State& state = states_[rank];
    const double seconds = state.until_started + state.left * slowness(state);
    state.changed_at = timeline_.now();
    state.ends_at = timeline_.now() + seconds;
    await_end(rank);
  }

  /// Adds the event of the work's end, unless one comes before, which looks again.
  void await_end(std::size_t rank) {
    State& state = states_[rank];
    if (state.event_at <= state.ends_at) return;
    state.event_at = state.ends_at;
    timeline_.add_at(state.ends_at, *this, rank * kKinds + kWork);
  }

  double slowness(const State& state) const { return (state.moving > 0 ? options_.copies_slow_kernels : 1) * crowding(); }

  /// Changes the speed of a rank's work, which was slowed by `before` so far, and adds seconds to it.
  void slow_down(std::size_t rank, double before, double more = 0) {
    State& state = states_[rank];
    const double passed = timeline_.now() - state.changed_at;
    const double waited = std::min(passed, state.until_started);
    state.until_started -= waited;
    state.left = std::max(0.0, state.left - (passed - waited) / before) + more;
    run_work(rank);
  }

  /// Counts the messages that a rank moves; a kernel changes its speed with the first and after the last.
  void moves(int rank, int change) {
    State& state = states_[static_cast<std::size_t>(rank)];
    const double before = slowness(state);
    state.moving += change;
    if (state.works && slowness(state) != before) slow_down(static_cast<std::size_t>(rank), before);
  }

  /// Does items until one takes time.
  void go_on(std::size_t rank) {
    State& state = states_[rank];
    PlayedRank& played = *state.rank;
    const Program& program = played.program();
    for (;;) {
      if (state.waits && !waited(rank)) return;  // only if ranks have cores
      if (state.next == program.items.size()) {
        if (++state.steps == options_.steps) {
          state.done = true;
          if (options_.cores) played.engine().exhaust();
          state.times.seconds = timeline_.now();
          return;
        }
        state.next = 0;
        played.begin_again();
        if (state.graph != nullptr) state.graph->begin_again();
      }
      if (state.next == 0) state.held = program.held_at_begin;
      const ProgramItem& item = program.items[state.next++];
      switch (item.kind) {
        case ItemKind::kernel: {
          state.chores = false;
          const KernelCost& cost = program.costs[item.index];
          if (options_.host_seconds > 0)
            state.host_at += options_.host_seconds * (options_.launches ? options_.launches(cost) : 1);
          const double seconds = options_.price(static_cast<int>(rank), cost);
          const double until_started = std::max(0.0, state.host_at - timeline_.now());
          if (state.graph != nullptr) state.graph->kernel(until_started + seconds);
          take_core(rank, seconds, until_started);
          if (!options_.cores) return;
          state.tick_seconds = options_.cores->tick_seconds(cost);
          if (state.news) await_tick(rank);
          return;
        }
        case ItemKind::post:
          post(state, item);
          if ((options_.blocking && begins_to_wait(state, item)) || goes_to_work(rank, new_chores(state))) return;
          break;
        case ItemKind::call:
          post(state, item);
          if (begins_to_wait(state, item) || goes_to_work(rank, new_chores(state))) return;
          break;
        case ItemKind::wait:
          if (begins_to_wait(state, item)) return;
          break;
        case ItemKind::take:
        case ItemKind::give: state.hold(item); break;
        case ItemKind::stage: break;
      }
    }
  }

  /// Posts the item's operation, which begins if its stream is free.
  void post(State& state, const ProgramItem& item) {
    if (state.graph != nullptr) state.graph->post(item.stream);
    state.rank->post(item);
    if (options_.cores) state.news = true;
    else state.rank->engine().exhaust(static_cast<Stream>(item.stream));
  }

  double new_chores(State& state) { return options_.cores ? chores_of(state) : 0; }

  /// Returns true if the item's operation isn't complete; the rank then waits for it. Ranks with cores always wait, maybe for no
  /// time: go_on() looks.
  bool begins_to_wait(State& state, const ProgramItem& item) {
    if (!options_.cores && state.rank->is_complete(item.stream, item.amount)) {
      if (state.graph != nullptr) state.graph->waited(item.stream, item.amount);
      return false;
    }
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
    return !options_.cores;
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
  std::optional<sim::LinkRates> rates_;  // if there are traces
  sim::SimWorld world_;
  std::vector<State> states_;
  int working_ = 0;  // ranks
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
  if (grid_of(played, options).units() * played != options.ranks)
    refuse(fmt::format("{} programs don't stand for {} ranks along {} axes", played, options.ranks, options.units.size()));
  if (options.steps < 1 || !options.price)
    refuse(fmt::format("{} steps, and {} prices", options.steps, options.price ? "with" : "no"));
  return Player(programs, options).run();
}

}  // namespace tsprun::detail
