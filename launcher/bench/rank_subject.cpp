// Calls the operations of a communicator.
#include "launcher/bench/rank_subject.h"

#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace tsprun::detail::bench {

RankSubject::RankSubject(Context& context, BufferBytes need)
    : context_(context),
      world_(context.world()),
      input_(context.allocate(need.input, "bench input")),
      output_(context.allocate(need.output, "bench output")) {}

void RankSubject::run(const Case& which, std::uint64_t times) {
  const auto [in, out] = buffers_of(*this, which);
  if (which.kind == Kind::all_to_all_v) parts_ = which.parts_of(rank());
  const bool copies = which.place == Placement::out_of_place && rank() == 0;
  for (std::uint64_t i = 0; i < times; ++i) {
    if (copies) std::memcpy(out.data, in.data, in.bytes());
    run_once(which, in, out);
  }
}

void RankSubject::run_once(const Case& which, ConstBuffer in, Buffer out) {
  switch (which.kind) {
    case Kind::pingpong:
      if (rank() == 0) world_.send(in, 1);
      if (rank() < 2) world_.recv(out, 1 - rank());
      if (rank() == 1) world_.send(in, 0);
      break;
    case Kind::broadcast: world_.broadcast(out, 0); break;
    case Kind::all_gather: world_.all_gather(in, out); break;
    case Kind::reduce_scatter: world_.reduce_scatter(in, out, which.reduction); break;
    case Kind::all_reduce: world_.all_reduce(in, out, which.reduction); break;
    case Kind::all_to_all: world_.all_to_all(in, out); break;
    case Kind::all_to_all_v: {
      const std::size_t all = std::accumulate(parts_.begin(), parts_.end(), std::size_t{0});
      world_.all_to_all_v(in.slice(0, all), parts_, out.slice(0, all), parts_);
      break;
    }
    case Kind::reduce: world_.reduce(in, rank() == 0 ? out : Buffer(), which.reduction, 0); break;
    case Kind::barrier: world_.barrier(); break;
  }
}

TransportNames transport_names(Context& context, Subject& subject) {
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

std::uint32_t fresh_seed(Subject& subject) {
  const auto clock = std::chrono::steady_clock::now().time_since_epoch().count() & 0xFFFF'FFFF;
  return static_cast<std::uint32_t>(tell(subject, static_cast<double>(clock)));
}

}  // namespace tsprun::detail::bench
