// Transformer blocks forward and backward on the ranks that started it: alone, or under `tsprun -n N run -- block_bench` by any
// strategy: TSP unless --layout says otherwise.
//
// Every rank times its own rounds between barriers; a round's time and its compute time are the slowest rank's, its exposed
// communication that of the rank which waited least: what another waits beyond that, it waits for a peer that computes longer.
// Rank 0 prints the medians over rounds in one line and, with --json, writes {"milliseconds", "tokens_per_s", "rounds", …}.
#include "core/rank/rank.h"
#include "layers/layout/mesh.h"
#include "layers/layout/token_layout.h"
#include "layers/model/block.h"
#include "layers/schedules/packs.h"
#include "layers/schedules/strategies.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

struct Options {
  std::size_t hidden = 1024;
  std::size_t heads = 16;
  std::size_t kv_heads = 16;
  std::size_t head_dim = 64;
  std::size_t intermediate = 2816;
  std::size_t sequence = 4096;
  std::size_t batch = 1;
  std::size_t threads = 1;
  std::size_t bucket_heads = 0;
  std::size_t layers = 1;
  int rounds = 5;
  std::string layout;
  tsprun::detail::SequenceExchange exchange = tsprun::detail::SequenceExchange::gather;
  std::string dtype = "f32";
  std::string recompute = "none";
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("one transformer block, forward and backward");
  app.add_option("--hidden", options.hidden)->capture_default_str();
  app.add_option("--heads", options.heads)->capture_default_str();
  app.add_option("--kv-heads", options.kv_heads)->capture_default_str();
  app.add_option("--head-dim", options.head_dim)->capture_default_str();
  app.add_option("--intermediate", options.intermediate)->capture_default_str();
  app.add_option("--seq", options.sequence)->capture_default_str();
  app.add_option("--batch", options.batch)->capture_default_str();
  app.add_option("--threads", options.threads, "compute threads a rank")->capture_default_str();
  app.add_option("--bucket-heads", options.bucket_heads)->capture_default_str();
  app.add_option("--layers", options.layers, "blocks, one after another")->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"f32", "f64", "bf16"}))->capture_default_str();
  app.add_option("--recompute", options.recompute)->check(CLI::IsMember({"none", "selective", "full"}))->capture_default_str();
  app.add_option("--layout", options.layout, "such as tp=2,sp=4; default: tsp over all ranks");
  app.add_option("--exchange", options.exchange, "of sp: gather, ring or ulysses")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, tsprun::detail::SequenceExchange>{{"gather", tsprun::detail::SequenceExchange::gather},
                                                                  {"ring", tsprun::detail::SequenceExchange::ring},
                                                                  {"ulysses", tsprun::detail::SequenceExchange::ulysses}}));
  app.add_option("--json", options.json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

void fill_normal(const tsprun::detail::Tensor& tensor, double deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  for (std::size_t i = 0; i < tensor.elements(); ++i) {
    const float value = normal(random);
    if (tensor.dtype() == tsprun::DType::f64) tensor.as<double>()[i] = static_cast<double>(value);
    else if (tensor.dtype() == tsprun::DType::f32) tensor.as<float>()[i] = value;
    else tensor.as<tsprun::bf16>()[i] = tsprun::bf16(value);
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tsprun;
  using namespace tsprun::detail;
  const Options options = parse(argc, argv);
  const DType dtype = *dtype_from_name(options.dtype);
  const Recompute recompute = options.recompute == "none"        ? Recompute::none
                              : options.recompute == "selective" ? Recompute::selective
                                                                 : Recompute::full;
  ModelConfig config;
  config.name = "bench";
  config.hidden = options.hidden;
  config.layers = options.layers;
  config.query_heads = options.heads;
  config.kv_heads = options.kv_heads;
  config.head_dim = options.head_dim;
  config.intermediate = options.intermediate;
  config.vocabulary = 1;
  config.max_positions = options.sequence;

  Context context = Context::from_environment();
  Rank rank(context, {.threads = options.threads});
  Communicator& world = context.world();
  const Layout layout = options.layout.empty() ? Layout::tsp(world.size()) : Layout::parse(options.layout);
  Mesh mesh(world, layout.with(options.exchange));
  const std::unique_ptr<const Strategy> made =
      make_strategy(rank, mesh, {.config = config, .dtype = dtype, .kv_bucket_heads = options.bucket_heads});
  const Strategy& strategy = *made;
  std::vector<Parameter> parameters;
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    for (Parameter& parameter : block_parameters(config, layer)) parameters.push_back(std::move(parameter));
  }
  ParameterStore store(rank, dtype, Placement(config, mesh.layout(), rank.rank()).packs(parameters), true);
  store.fill_fresh(config.layers, 1);
  const TokenLayout tokens(rank, config, dtype, options.batch, options.sequence, mesh.place(mesh.layout().token_axis()),
                           mesh.layout().sequence());
  const auto vectors = [&](std::size_t layer) {
    const auto norm = [&](std::size_t part) {
      const std::size_t pack = 2 * config.layers;
      return NormWeights{.gain = store.values(pack, part, 1).select(0, 0),
                         .bias = {},
                         .gain_gradient = store.gradients(pack, part, 1).select(0, 0),
                         .bias_gradient = {}};
    };
    return BlockVectors{.attention = norm(2 * layer), .mlp = norm(2 * layer + 1)};
  };
  Block block(rank, strategy, config, dtype, recompute);

  std::vector<double> forward_ms;
  std::vector<double> total_ms;
  std::vector<double> compute_ms;
  std::vector<double> communication_ms;
  std::vector<double> exposed_ms;
  std::uint64_t received = 0;
  const auto over_ranks = [&](double seconds, Reduction which) {
    world.all_reduce(ConstBuffer(&seconds, 1, DType::f64), Buffer(&seconds, 1, DType::f64), which);
    return seconds * 1e3;
  };
  for (int round = -1; round < options.rounds; ++round) {
    OwnedTensor x = rank.tensor(Category::activations, dtype, {options.batch, tokens.local(), config.hidden}, "input");
    OwnedTensor d = rank.tensor(Category::workspace, dtype == DType::f64 ? DType::f64 : DType::f32,
                                {options.batch, tokens.local(), config.hidden}, "gradient");
    fill_normal(x, 1, static_cast<unsigned>(mesh.place(mesh.layout().token_axis())));
    fill_normal(d, 1, static_cast<unsigned>(mesh.place(mesh.layout().token_axis()) + 100));
    std::vector<BlockSaved> saved(config.layers);
    const TrafficCounters before = context.traffic();
    world.barrier();
    rank.reset_times();
    const auto begin = std::chrono::steady_clock::now();
    Visits visits(training_tasks(config.layers, 1));
    const std::unique_ptr<StrategyPass> sublayers = strategy.begin({.store = store, .tokens = tokens, .visits = visits});
    const BlockPass pass{.sublayers = *sublayers, .tokens = tokens};
    for (std::size_t layer = 0; layer < config.layers; ++layer) {
      x = block.forward(pass, layer, std::move(x), vectors(layer), Keep::backward, saved[layer]);
    }
    const auto half = std::chrono::steady_clock::now();
    sublayers->begin_backward();
    for (std::size_t layer = config.layers; layer-- > 0;) block.backward(pass, layer, d, vectors(layer), saved[layer]);
    sublayers->end();
    const auto end = std::chrono::steady_clock::now();
    const RankTimes times = rank.times();
    const TrafficCounters after = context.traffic();
    received = 0;
    for (int i = 0; i < kPurposes; ++i) received += after.received[i] - before.received[i];
    const double forward = over_ranks(std::chrono::duration<double>(half - begin).count(), Reduction::max);
    const double total = over_ranks(std::chrono::duration<double>(end - begin).count(), Reduction::max);
    const double computed = over_ranks(times.compute, Reduction::max);
    const double communication = over_ranks(times.communication, Reduction::min);
    const double exposed = over_ranks(times.exposed_communication, Reduction::min);
    if (round < 0) continue;  // caches, page faults
    forward_ms.push_back(forward);
    total_ms.push_back(total);
    compute_ms.push_back(computed);
    communication_ms.push_back(communication);
    exposed_ms.push_back(exposed);
  }
  if (world.rank() != 0) return 0;
  const double ms = median(total_ms);
  const double tokens_per_s = static_cast<double>(options.batch * options.sequence) / ms * 1e3;
  fmt::print(
      "{} rank(s) x {} thread(s): forward {:.1f} ms, forward and backward {:.1f} ms, {:.0f} tokens/s; "
      "compute {:.1f}, communication {:.1f}, exposed {:.1f} ms, {:.1f} MB received\n",
      world.size(), options.threads, median(forward_ms), ms, tokens_per_s, median(compute_ms), median(communication_ms),
      median(exposed_ms), static_cast<double>(received) * 1e-6);
  if (!options.json.empty()) {
    std::ofstream(options.json) << nlohmann::json{{"ranks", world.size()},
                                                  {"threads", options.threads},
                                                  {"forward_ms", median(forward_ms)},
                                                  {"milliseconds", ms},
                                                  {"tokens_per_s", tokens_per_s},
                                                  {"rounds", total_ms},
                                                  {"compute_ms", median(compute_ms)},
                                                  {"exposed_ms", median(exposed_ms)},
                                                  {"received_bytes", received}}
                                       .dump()
                                << '\n';
  }
  return 0;
}
