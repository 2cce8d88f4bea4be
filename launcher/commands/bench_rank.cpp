// One rank of `tsprun bench`: see bench_rank.h.
#include "launcher/commands/bench_rank.h"

#include "launcher/bench/table.h"
#include "transport/cause.h"
#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

using bench::Case;
using bench::Kind;

class RankSubject final : public bench::Subject {
 public:
  RankSubject(Context& context, bench::BufferBytes need)
      : context_(context),
        world_(context.world()),
        input_(context.allocate(need.input, "bench input")),
        output_(context.allocate(need.output, "bench output")) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void barrier() override { world_.barrier(); }
  void send(std::span<const double> values, int to) override { world_.send(ConstBuffer(values), to); }
  void receive(std::span<double> values, int from) override { world_.recv(Buffer(values), from); }
  std::span<std::byte> input() override { return input_.bytes(); }
  std::span<std::byte> output() override { return output_.bytes(); }
  void tick() override { context_.tick(); }

  void run(const Case& which, std::uint64_t times) override {
    const auto [in, out] = bench::buffers_of(*this, which);
    const bool copies = which.place == bench::Place::out_of_place && rank() == 0;
    for (std::uint64_t i = 0; i < times; ++i) {
      if (copies) std::memcpy(out.data, in.data, in.bytes());
      run_once(which.kind, in, out);
    }
  }

 private:
  void run_once(Kind kind, ConstBuffer in, Buffer out) {
    switch (kind) {
      case Kind::pingpong:
        if (rank() == 0) world_.send(in, 1);
        if (rank() < 2) world_.recv(out, 1 - rank());
        if (rank() == 1) world_.send(in, 0);
        break;
      case Kind::broadcast: world_.broadcast(out, 0); break;
      case Kind::all_gather: world_.all_gather(in, out); break;
      case Kind::reduce_scatter: world_.reduce_scatter(in, out, Reduction::sum); break;
      case Kind::all_reduce: world_.all_reduce(in, out, Reduction::sum); break;
      case Kind::all_to_all: world_.all_to_all(in, out); break;
      case Kind::reduce: world_.reduce(in, rank() == 0 ? out : Buffer(), Reduction::sum, 0); break;
      case Kind::barrier: world_.barrier(); break;
    }
  }

  Context& context_;
  Communicator& world_;
  HeapBlock input_;
  HeapBlock output_;
};

/// Names of the transports that carry messages, for the head and the rows of the table.
struct TransportNames {
  std::string all;   ///< all transports between any two ranks: "shm+tcp"
  std::string pair;  ///< the transport between ranks 0 and 1, which alone carries a ping-pong

  const std::string& of(Kind kind) const { return kind == Kind::pingpong ? pair : all; }
};

/// Returns the names on rank 0, nothing on others. A rank knows only its own transports, so each sends rank 0 a bit for each that
/// it uses.
TransportNames transport_names(Context& context, bench::Subject& subject) {
  if (context.size() < 2) return {"none", "none"};
  unsigned used = 0;
  for (int peer = 0; peer < context.size(); ++peer) {
    if (peer == context.rank()) continue;
    const auto place = std::ranges::find(kFactories, engine_of(context).route(peer).kind, &Factory::name);
    used |= 1U << (place - kFactories.begin());
  }
  double told = used;
  if (subject.rank() != 0) {
    subject.send({&told, 1}, 0);
    return {};
  }
  for (int from = 1; from < subject.size(); ++from) {
    subject.receive({&told, 1}, from);
    used |= static_cast<unsigned>(told);
  }
  std::string all;
  for (std::size_t i = 0; i < kFactories.size(); ++i) {
    if ((used >> i & 1U) != 0) all += fmt::format("{}{}", all.empty() ? "" : "+", kFactories[i]->name);
  }
  return {all, std::string(engine_of(context).route(1).kind)};
}

/// Returns a seed that is different in every run and the same on all ranks.
std::uint32_t fresh_seed(bench::Subject& subject) {
  double seed = static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() & 0xFFFF'FFFF);
  if (subject.rank() != 0) {
    subject.receive({&seed, 1}, 0);
  } else {
    for (int to = 1; to < subject.size(); ++to) subject.send({&seed, 1}, to);
  }
  return static_cast<std::uint32_t>(seed);
}

void print_head(Context& context, ReportSink& sink, const BenchPlan& plan, const std::string& transports) {
  const std::string who = fmt::format("tsprun bench: {} rank{} on {} core{}{}, transport {}", context.size(),
                                      context.size() == 1 ? "" : "s", plan.cores, plan.cores == 1 ? "" : "s",
                                      plan.several_machines ? " of node 0's machine and those of others" : "", transports);
  sink.line(bench::title_line(who));
  if (job_of(context).nodes > 1) {
    const std::string why = context.world().why_not_hierarchical(Op::all_gather);
    if (!why.empty()) sink.line(fmt::format("# no hierarchical algorithms: {}", why));
  }
  for (const std::string& note : plan.notes) sink.line(note);
}

}  // namespace

int bench_rank(Context& context, ReportSink& sink, const BenchPlan& plan) {
  RankSubject subject(context, bench::buffers_for(bench::in_both_places(plan.cases)));
  const bool speaks = context.rank() == 0;
  const TransportNames transports = transport_names(context, subject);
  if (speaks) print_head(context, sink, plan, transports.all);

  std::uint32_t seed = fresh_seed(subject);
  const auto outcome = [&](const std::optional<Case>& form) -> std::optional<bench::Outcome> {
    if (!form) return std::nullopt;
    const std::uint64_t wrong = plan.check ? bench::check(subject, *form, seed) : bench::kUnchecked;
    seed += bench::kCheckIterations;
    return bench::Outcome{bench::measure(subject, *form, plan.pace), wrong};
  };
  bench::Table table([&](const std::string& line) { sink.line(line); });
  std::string wrong_rows;
  for (const Case& which : plan.cases) {
    bench::Outcomes outcomes;
    const bool usually_in_place = which.kind == Kind::broadcast;
    if (plan.both_places || !usually_in_place) outcomes.out_of_place = outcome(bench::out_of_place(which));
    if (plan.both_places || usually_in_place) outcomes.in_place = outcome(bench::in_place(which));
    if (!speaks) continue;
    table.add(which, outcomes, transports.of(which.kind));
    sink.set("bench", table.rows());
    for (const std::optional<bench::Outcome>& each : {outcomes.out_of_place, outcomes.in_place}) {
      if (!each || each->wrong == 0 || each->wrong == bench::kUnchecked) continue;
      wrong_rows += fmt::format("{}{} of {} bytes: {} wrong", wrong_rows.empty() ? "" : "; ", bench::name(which.kind),
                                which.bytes, each->wrong);
    }
  }
  if (speaks) table.finish();
  if (!wrong_rows.empty()) throw Error(Cause::corrupt, fmt::format("results were wrong: {}", wrong_rows));
  return 0;
}

}  // namespace tsprun::detail::launcher
