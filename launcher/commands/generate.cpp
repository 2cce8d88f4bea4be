// `tsprun generate`: samples text from a model. The prompt goes through the training schedule's forward pass; every further token
// moves activations and no weights. The text goes to stdout as it is made, everything else to stderr.
#include "core/kernels/finite.h"
#include "launcher/commands/command.h"
#include "launcher/model/audit.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/session.h"
#include "launcher/refuse.h"
#include "launcher/utf8_pieces.h"
#include "layers/io/data.h"
#include "layers/model/decode.h"
#include "layers/model/sampling.h"
#include "layers/parameters/not_finite.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kGenerateUse{.model_folder = true, .data = false, .seed = true, .recompute = false};
constexpr Token kBytes = 256;

/// Returns the nearest layout that can be decoded: without dp, and with tsp instead of zero3.
Layout decodable(const Layout& layout) {
  Layout works;
  for (const Axis& axis : layout.axes) {
    const AxisRow& row = row_of(axis.kind);
    const bool decoded = row.why_not_decoded.empty();
    if (decoded || row.decoded_instead) works.axes.push_back({decoded ? axis.kind : *row.decoded_instead, axis.degree});
  }
  return works.axes.empty() ? Layout::tsp(layout.ranks()) : works;
}

/// Returns text as JSON may hold it: bytes that aren't UTF-8 become U+FFFD.
nlohmann::ordered_json utf8(const std::string& text) {
  const nlohmann::ordered_json raw = text;
  return nlohmann::ordered_json::parse(raw.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

/// Returns true if the prompt names a file of token ids instead of being a text.
bool prompt_is_file(const std::string& prompt) {
  const std::filesystem::path path(prompt);
  return path.extension() == ".bin" && std::filesystem::is_regular_file(path);
}

/// The options of `generate`, each with its default.
struct GenerateOptions {
  std::string prompt;
  Given<std::size_t> tokens{64};
  Given<double> temperature{1.0};
  Given<std::size_t> top_k{0};
  Given<double> top_p{1.0};
  bool audit = false;  ///< print the audit's tables, not only its verdict

  // Values derived during validation, not given on the command line.
  std::vector<Token> ids;  ///< the prompt's tokens
  SamplingOptions sampling;

  /// Adds the rows of the options.
  void declare(OptionTable& table);
};

/// Returns the bytes that the ids stand for. An id of 256 or more becomes "<300>".
std::string text_of(std::span<const Token> ids) {
  std::string text;
  for (const Token id : ids) {
    if (id < kBytes) text += static_cast<char>(id);
    else text += fmt::format("<{}>", id);
  }
  return text;
}

void generate_rank(Context& context, ReportSink& sink, const GlobalOptions& global, const ModelCommandOptions& shape,
                   const GenerateOptions& options) {
  Session session(context, sink, global);
  Rank& rank = session.rank();
  Model model(rank, session.mesh(), model_options(shape, false));
  fill_weights(session, model, shape);
  // K and V of the last token are never needed.
  Decoder decoder(rank, model, options.ids.size() + options.tokens - 1);
  rank.reset_times();
  const std::uint64_t begun = posix::now_ns();
  std::vector<Token> ids;
  Utf8Pieces pieces;
  const auto say = [&](const std::string& bytes) {
    const std::string whole = pieces.add(bytes);
    if (!whole.empty()) sink.text(whole);
  };
  if (session.speaks()) say(text_of(options.ids));
  RankAudit audit;
  const TrafficCounters at_first = context.traffic();
  ConstTensor logits = decoder.prompt(options.ids);
  const std::uint64_t prefilled = posix::now_ns();
  const TrafficCounters before = context.traffic();
  while (true) {
    if (kernels::first_not_finite(logits)) {
      blame_not_finite(rank, context.world(), model.parameters(),
                       {.what = fmt::format("token {} of the text: its logits aren't finite", decoder.length()),
                        .advice = "--dtype f64 shows whether numbers outgrew this type",
                        .run = [&] {
                          decoder.forget();
                          decoder.prompt(options.ids);
                          for (const Token id : ids) decoder.step(id);
                        }});
    }
    ids.push_back(sample(logits, options.sampling, ids.size()));
    if (session.speaks()) say(text_of({&ids.back(), 1}));
    if (ids.size() == options.tokens) break;
    logits = decoder.step(ids.back());
  }
  const std::uint64_t ended = posix::now_ns();
  audit.forward = before - at_first;
  audit.tokens = context.traffic() - before;
  audit.seconds = rank.times();
  audit.memory_peak = rank.memory_peaks();
  double received = 0;  // by all ranks, since they take turns in holding a token's K and V
  for (const std::uint64_t bytes : audit.tokens.received) received += static_cast<double>(bytes);
  context.world().all_reduce(ConstBuffer(&received, 1, DType::f64), Buffer(&received, 1, DType::f64), Reduction::sum);
  if (session.speaks()) {
    const auto speed = [](std::size_t tokens, std::uint64_t ns) {
      return static_cast<double>(tokens) / (static_cast<double>(ns) * 1e-9);
    };
    sink.text(pieces.rest() + "\n");
    sink.set("generate", {{"text", utf8(text_of(ids))},
                          {"tokens", ids},
                          {"prompt", utf8(text_of(options.ids))},
                          {"tokens_per_s", speed(ids.size(), ended - begun)},
                          {"prefill_tokens_per_s", speed(options.ids.size(), prefilled - begun)},
                          {"decode_tokens_per_s", speed(ids.size() - 1, ended - prefilled)},
                          {"received_bytes_per_token", ids.size() > 1 ? received / static_cast<double>(ids.size() - 1) : 0}});
  }
  std::vector<Token> text = options.ids;
  text.insert(text.end(), ids.begin(), ids.end());
  finish_with_text_audit(session, audit, shape, text, options.ids.size(), options.audit);
}

/// The command `generate`.
class GenerateCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "generate",
            .help = "sample text from a model",
            .examples = {"tsprun -n 4 generate --model runs/book/step-000700 --prompt 'The ' --tokens 160 --temperature 0.6",
                         "tsprun --layout tp=2 generate --config nano --prompt 'The ' --top-k 40 --seed 7"},
            .has_trace = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void read_prompt();

  ModelCommandOptions model_;
  GenerateOptions options_;
};

void GenerateOptions::declare(OptionTable& table) {
  using enum Trait;
  constexpr double kHottest = 1e6;
  table.group("Generation");
  table.add("--prompt TEXT|FILE.bin", prompt, "what the text begins with; a .bin file holds token ids", required | reads);
  table.add("--tokens N", tokens, "tokens to add");
  table.add("--temperature T", temperature, "of the logits; 0: always the likeliest token",
            Number{{.lowest = 0, .highest = kHottest}});
  table.add("--top-k K", top_k, "only the K likeliest; 0: all");
  table.add("--top-p P", top_p, "only the likeliest that together have this probability",
            Number{{.lowest = 0, .highest = 1, .open = true}});
  table.add("--audit", audit, "print on stderr what every rank held and received, beside the forecast", per_node);
}

void GenerateCommand::declare(OptionTable& table) {
  model_.declare(table, kGenerateUse);
  options_.declare(table);
}

void GenerateCommand::read_prompt() {
  const std::filesystem::path path(options_.prompt);
  if (prompt_is_file(options_.prompt)) {
    const TokenStream stream({path}, 1);
    options_.ids.resize(static_cast<std::size_t>(stream.size()));
    stream.read(0, options_.ids);
  } else {
    if (!model_.model.empty()) refuse_text_beside_tokenizer({"--prompt"}, model_.model);
    if (path.extension() == ".bin") spdlog::warn("--prompt {}: there is no such file; it is taken as text", options_.prompt);
    for (const char byte : options_.prompt) options_.ids.push_back(static_cast<unsigned char>(byte));
  }
  if (options_.ids.empty()) refuse("--prompt '': a text begins with at least one byte; try --prompt 'The '");
  for (const Token id : options_.ids) {
    if (static_cast<std::size_t>(id) >= model_.shape.vocabulary) {
      refuse(fmt::format("--prompt: token {} isn't below the vocabulary's {} ids", id, model_.shape.vocabulary));
    }
  }
}

void GenerateCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global, kGenerateUse);
  const Layout layout = layout_of(global);
  if (const std::string why = Decoder::why_not(layout.plain()); !why.empty()) {
    refuse(fmt::format("{}: generate can't decode so: {}; try --layout {}", ranks_as_typed(global), why,
                       decodable(global.layout).print()));
  }
  for (const Axis& axis : layout.axes) {
    const Variant* variant = variant_of(axis);
    if (variant != nullptr && !variant->why_not_decoded.empty())
      refuse(fmt::format("--{} {}: generate can't decode so: {}", name(axis.kind), variant->name, variant->why_not_decoded));
  }
  read_prompt();
  const std::size_t room = model_.shape.max_positions;
  const auto most = static_cast<std::int64_t>(room > options_.ids.size() ? room - options_.ids.size() : 0);
  if (most == 0) {
    refuse(fmt::format("--prompt: {} tokens leave no room for more: the model has {} positions", options_.ids.size(), room));
  }
  const auto check = [](const char* option, Given<std::size_t>& number, std::int64_t lowest, std::int64_t highest) {
    number = static_cast<std::size_t>(
        parse_integer(option, number.given() ? number.text : std::to_string(number.value), lowest, highest));
  };
  check("--tokens", options_.tokens, 1, most);
  check("--top-k", options_.top_k, 0, static_cast<std::int64_t>(model_.shape.vocabulary));
  options_.sampling = {
      .temperature = options_.temperature, .top_k = options_.top_k, .top_p = options_.top_p, .seed = model_.seed};
  validate_memory(model_, global, ModelUse::inference);
}

Inputs GenerateCommand::inputs() const {
  Inputs inputs = model_inputs(model_);
  if (prompt_is_file(options_.prompt)) inputs.files.push_back({"--prompt", options_.prompt});
  return inputs;
}

int GenerateCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  return run_model_job(global, report,
                       [&](Context& context, ReportSink& sink) { generate_rank(context, sink, global, model_, options_); });
}

}  // namespace

std::unique_ptr<Command> make_generate() { return std::make_unique<GenerateCommand>(); }

}  // namespace tsprun::detail::launcher
