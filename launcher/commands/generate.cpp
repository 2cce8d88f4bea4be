// `tsprun generate`: samples text from a model. The prompts go through the training schedule's forward pass; every further token
// moves activations and no weights. One text goes to stdout as it is made, those of --prompts at the end, everything else to
// stderr.
#include "core/kernels/finite.h"
#include "launcher/commands/command.h"
#include "launcher/commands/decoding.h"
#include "launcher/commands/prompts.h"
#include "launcher/model/audit.h"
#include "launcher/model/layouts.h"
#include "launcher/model/memory_need.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/model_text.h"
#include "launcher/model/session.h"
#include "launcher/refuse.h"
#include "layers/io/file.h"
#include "layers/model/decode.h"
#include "layers/model/sampling.h"
#include "layers/parameters/not_finite.h"
#include "layers/text/generation_config.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kGenerateUse{
    .model_folder = true, .data = false, .seed = true, .recompute = false, .audit = false, .as_stored = true};

/// Returns the replicas with most tokens in their prompts, so many as forecasts look at.
std::vector<int> longest_first(int replicas, const std::function<std::span<const Prompt>(int replica)>& texts_of) {
  std::vector<std::pair<std::size_t, int>> by_length;
  for (int replica = 0; replica < replicas; ++replica) {
    std::size_t tokens = 0;
    for (const Prompt& prompt : texts_of(replica)) tokens += prompt.ids.size();
    by_length.emplace_back(tokens, replica);
  }
  std::ranges::sort(by_length, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int> longest;
  for (const auto& each : std::span(by_length).first(std::min<std::size_t>(by_length.size(), theory::kMostAsked)))
    longest.push_back(each.second);
  return longest;
}

/// Returns text as JSON may hold it: bytes that aren't UTF-8 become U+FFFD.
nlohmann::ordered_json utf8(const std::string& text) {
  const nlohmann::ordered_json raw = text;
  return nlohmann::ordered_json::parse(raw.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

/// The options of `generate`, each with its default.
struct GenerateOptions {
  std::string prompt;   ///< empty: the prompts are those of a file
  std::string prompts;  ///< the file
  Given<std::size_t> tokens{64};
  DrawingOptions drawing;
  StopOptions stop;
  bool ignore_ends = false;  ///< --ignore-eos
  std::string audit;         ///< "report": print the audit's tables, not only its verdict; "strict": and fail if a figure differs

  // Values derived during validation, not given on the command line.
  ModelText reader;           ///< makes text of tokens
  std::vector<Prompt> texts;  ///< at least one
  std::vector<Token> ends;    ///< ids that end a text
  SamplingOptions sampling;

  /// Adds the rows of the options.
  void declare(OptionTable& table);
};

bool holds(const std::vector<Token>& tokens, Token token) { return std::ranges::find(tokens, token) != tokens.end(); }

/// The texts of one rank's replica, while they are decoded together.
struct OwnTexts {
  std::size_t first = 0;  ///< number of the first among the texts of all replicas
  std::vector<std::vector<Token>> prompts;
  std::vector<std::vector<Token>> added;  ///< also what is drawn for a text that has ended, while others go on
  std::vector<std::size_t> lengths;       ///< tokens up to the one that ended a text; 0: none has
  std::vector<TokenText> said;            ///< where --stop has texts, what to find them in

  OwnTexts(Mesh& mesh, const GenerateOptions& options) {
    const std::span<const Prompt> all = options.texts;
    const Chunks cut = Chunks::balanced(mesh.layout().data(), all.size());
    const int replica = mesh.layout().data_place(mesh.world().rank());
    first = cut.offset(replica);
    for (const Prompt& prompt : all.subspan(first, cut.count(replica))) {
      prompts.push_back(prompt.ids);
      if (!options.stop.texts.empty()) said.emplace_back(options.reader, options.stop.texts).prompt(prompt.ids);
    }
    added.resize(prompts.size());
    lengths.resize(prompts.size());
  }
  std::size_t count() const { return prompts.size(); }
  /// Returns how many tokens each text has in the cache once `tokens` are added: K and V of the last are never needed.
  std::vector<std::size_t> positions(std::size_t tokens) const {
    std::vector<std::size_t> positions;
    for (const std::vector<Token>& prompt : prompts) positions.push_back(prompt.size() + tokens - 1);
    return positions;
  }
  /// Notes which texts the tokens added last have ended. Returns whether all have ended.
  bool all_ended(const GenerateOptions& options) {
    bool all = true;
    for (std::size_t text = 0; text < count(); ++text) {
      if (lengths[text] == 0 && ends(options, text)) lengths[text] = added[text].size();
      all = all && lengths[text] != 0;
    }
    return all;
  }
  /// Returns what was added to a text up to its end.
  std::span<const Token> whole(std::size_t text) const {
    return std::span(added[text]).first(lengths[text] == 0 ? added[text].size() : lengths[text]);
  }
  /// Returns a text with its prompt, if the options look at what it has already.
  std::vector<Token> so_far(std::size_t text, const SamplingOptions& sampling) const {
    if (sampling.repetition_penalty == 1) return {};
    std::vector<Token> tokens = prompts[text];
    tokens.insert(tokens.end(), added[text].begin(), added[text].end());
    return tokens;
  }
  /// Returns token `number` of every text after its prompt.
  std::vector<Token> at(std::size_t number) const {
    std::vector<Token> tokens;
    for (const std::vector<Token>& text : added) tokens.push_back(text[number]);
    return tokens;
  }

 private:
  /// Returns whether the token added last ends a text.
  bool ends(const GenerateOptions& options, std::size_t text) {
    const Token last = added[text].back();
    if (!said.empty()) said[text].add({&last, 1});
    return (!said.empty() && said[text].stopped()) || holds(options.ends, last) || holds(options.stop.tokens, last);
  }
};

/// Returns the ranks that decode the same texts.
Communicator& replica_of(Mesh& mesh) { return mesh.group(mesh.layout().axes_of_replica()); }

/// Returns the tokens added to the texts of all replicas, at most `most` each, in order, on every rank. Collective.
std::vector<std::vector<Token>> added_to_all(Session& session, const OwnTexts& own, std::size_t count, std::size_t most) {
  const std::size_t width = 1 + most;  // their number, then they
  std::vector<Token> ids(count * width);
  if (own.count() == count || replica_of(session.mesh()).rank() == 0) {
    for (std::size_t text = 0; text < own.count(); ++text) {
      const std::span<const Token> added = own.whole(text);
      const auto to = ids.begin() + static_cast<std::ptrdiff_t>((own.first + text) * width);
      *to = static_cast<Token>(added.size());
      std::ranges::copy(added, to + 1);
    }
  }
  if (own.count() != count) session.world().all_reduce(Buffer(ids.data(), ids.size(), DType::i32), Reduction::sum);
  std::vector<std::vector<Token>> all;
  for (std::size_t text = 0; text < count; ++text) {
    const std::span<const Token> of = std::span(ids).subspan(text * width);
    const std::span<const Token> added = of.subspan(1, static_cast<std::size_t>(of.front()));
    all.emplace_back(added.begin(), added.end());
  }
  return all;
}

/// Prints one text as it is made.
class TextStream {
 public:
  TextStream(ReportSink& sink, bool speaks, const GenerateOptions& options)
      : sink_(sink), speaks_(speaks), text_(options.reader, options.stop.texts) {}
  void prompt(std::span<const Token> ids) {
    if (speaks_) say(text_.prompt(ids));
  }
  void add(Token id) {
    if (speaks_) say(text_.add({&id, 1}));
  }
  void end() {
    if (speaks_) sink_.text(text_.finish() + "\n");
  }

 private:
  void say(const std::string& text) {
    if (!text.empty()) sink_.text(text);
  }

  ReportSink& sink_;
  bool speaks_;
  TokenText text_;
};

/// Throws an error that names the first tensor that isn't finite if the logits of a text aren't.
void check_logits(Session& session, Model& model, Decoder& decoder, const ConstTensor& logits, const OwnTexts& texts,
                  std::span<const Prompt> prompts) {
  for (std::size_t text = 0; text < texts.count(); ++text) {
    if (!kernels::first_not_finite(logits.select(0, text))) continue;
    const std::string of = prompts.size() == 1 ? "the text" : prompts[texts.first + text].name;
    blame_not_finite(session.rank(), replica_of(session.mesh()), model.parameters(),
                     {.what = fmt::format("token {} of {}: its logits aren't finite", decoder.length(text), of),
                      .advice = "--dtype f64 shows whether numbers outgrew this type",
                      .run = [&] {
                        const std::size_t steps = texts.added.front().size();
                        decoder.forget();
                        decoder.prompt(texts.prompts);
                        for (std::size_t i = 0; i < steps; ++i) decoder.step(texts.at(i));
                      }});
  }
}

/// Returns a text as the report has it. Prompt and text together are the text of all tokens, up to a stop text.
nlohmann::ordered_json text_json(const GenerateOptions& options, const Prompt& prompt, const std::vector<Token>& added) {
  TokenText text(options.reader, options.stop.texts);
  const std::string before = text.prompt(prompt.ids);
  std::string after = text.add(added);
  after += text.finish();
  const char* by = text.stopped()                             ? "stop"
                   : holds(options.ends, added.back())        ? "eos"
                   : holds(options.stop.tokens, added.back()) ? "stop"
                                                              : "length";
  return {{"text", utf8(after)}, {"tokens", added}, {"prompt", utf8(before)}, {"ended_by", by}};
}

void generate_rank(Context& context, ReportSink& sink, const GlobalOptions& global, const ModelCommandOptions& shape,
                   const GenerateOptions& options) {
  Session session(context, sink, global);
  Rank& rank = session.rank();
  RunWeights weights(session, shape);
  Model model(rank, session.mesh(), model_options(shape, false));
  weights.fill(model);
  OwnTexts texts(session.mesh(), options);
  std::size_t longest = 0;  // of all replicas
  for (const Prompt& prompt : options.texts) longest = std::max(longest, prompt.ids.size());
  model.expect(longest + options.tokens);
  Decoder decoder(rank, model, texts.positions(options.tokens));
  rank.reset_times();
  const std::uint64_t begun = posix::now_ns();
  TextStream stream(sink, session.speaks() && options.prompts.empty(), options);
  stream.prompt(options.texts.front().ids);
  RankAudit audit;
  const TrafficCounters at_first = context.traffic();
  ConstTensor logits = decoder.prompt(texts.prompts);
  const std::uint64_t prefilled = posix::now_ns();
  const TrafficCounters before = context.traffic();
  for (std::size_t number = 0;; ++number) {
    check_logits(session, model, decoder, logits, texts, options.texts);
    for (std::size_t text = 0; text < texts.count(); ++text)
      texts.added[text].push_back(sample(logits.select(0, text), options.sampling, number, texts.so_far(text, options.sampling)));
    stream.add(texts.added.front().back());
    if (texts.all_ended(options) || number + 1 == options.tokens) break;
    logits = decoder.step(texts.at(number));
  }
  audit.forward = before - at_first;
  audit.tokens = context.traffic() - before;
  audit.seconds = rank.times();
  audit.memory_peak = rank.memory_peaks();
  // Of all ranks, since they take turns in holding a token's K and V: received bytes, and tokens that were put in after prompts.
  std::array<double, 2> sums{};
  for (const std::uint64_t bytes : audit.tokens.received) sums[0] += static_cast<double>(bytes);
  if (replica_of(session.mesh()).rank() == 0) sums[1] = static_cast<double>((texts.added.front().size() - 1) * texts.count());
  context.world().all_reduce(ConstBuffer(sums.data(), sums.size(), DType::f64), Buffer(sums.data(), sums.size(), DType::f64),
                             Reduction::sum);
  const std::uint64_t ended = posix::now_ns();  // of the replica that decoded longest
  const std::vector<std::vector<Token>> added = added_to_all(session, texts, options.texts.size(), options.tokens);
  stream.end();
  if (session.speaks()) {
    const auto speed = [](std::size_t tokens, std::uint64_t ns) {
      return static_cast<double>(tokens) / (static_cast<double>(ns) * 1e-9);
    };
    nlohmann::ordered_json report;
    std::size_t given = 0;
    std::size_t made = 0;
    for (std::size_t text = 0; text < added.size(); ++text) {
      const Prompt& prompt = options.texts[text];
      given += prompt.ids.size();
      made += added[text].size();
      if (options.prompts.empty()) {
        report = text_json(options, prompt, added[text]);
        continue;
      }
      nlohmann::ordered_json& of = report["texts"].emplace_back(text_json(options, prompt, added[text]));
      sink.line(nlohmann::ordered_json(of["prompt"].get<std::string>() + of["text"].get<std::string>()).dump());
    }
    report["sampling"] = sampling_json(options.sampling);
    report["tokens_per_s"] = speed(made, ended - begun);
    report["prefill_tokens_per_s"] = speed(given, prefilled - begun);
    report["decode_tokens_per_s"] = speed(made - added.size(), ended - prefilled);
    report["received_bytes_per_token"] = sums[1] > 0 ? sums[0] / sums[1] : 0;
    sink.set("generate", report);
  }
  std::vector<DecodedText> decoded;
  const std::vector<std::size_t> room = texts.positions(options.tokens);
  for (std::size_t text = 0; text < texts.count(); ++text) {
    texts.added[text].pop_back();
    decoded.push_back({.prompt = texts.prompts[text], .added = texts.added[text], .room = room[text]});
  }
  finish_with_text_audit(session, audit, shape, decoded, options.audit);
}

/// The command `generate`.
class GenerateCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "generate",
            .help = "sample text from a model",
            .examples = {"tsprun -n 4 generate --model runs/book/step-000700 --prompt 'The ' --tokens 160 --temperature 0.6",
                         "tsprun --layout tp=2 generate --config nano --prompt 'The ' --top-k 40 --seed 7"},
            .has_trace = true,
            .has_profile = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void read_texts();
  void check_replicas(const GlobalOptions& global, const Layout& layout) const;

  ModelCommandOptions model_;
  GenerateOptions options_;
};

void GenerateOptions::declare(OptionTable& table) {
  using enum Trait;
  table.group("Generation");
  table.add("--prompt TEXT|FILE", prompt, "what the text begins with, or a file of token ids: .bin, .u32 or .npy",
            computed | reads);
  table.add("--prompts FILE", prompts, "instead: each line begins a text of its own, and all are decoded together", reads);
  table.add("--tokens N", tokens, "tokens to add at most; without this option fewer where the model has no room for so many");
  drawing.declare(table);
  stop.declare(table);
  table.add("--ignore-eos", ignore_ends,
            "go on behind the tokens that end a text, as the model's generation_config.json or config.json names them");
  OptionRow& row =
      table.add("--audit MODE", audit,
                "print on stderr what every rank held and received, beside the forecast; strict: and exit with 1 if a "
                "byte differs",
                per_node);
  row.declare = [usual = row.declare](CLI::App& app) { return usual(app)->expected(0, 1)->default_str("report"); };
  row.parse = [this] {
    if (!audit.empty()) audit_modes()("--audit", audit);
  };
}

void GenerateCommand::declare(OptionTable& table) {
  model_.declare(table, kGenerateUse);
  options_.declare(table);
}

void GenerateCommand::read_texts() {
  if (options_.prompt.empty() == options_.prompts.empty()) {
    refuse(options_.prompt.empty()
               ? "generate needs --prompt TEXT or --prompts FILE; try --prompt 'The '"
               : "--prompt and --prompts: give one of them; --prompts takes the texts' beginnings from a file");
  }
  if (!options_.ignore_ends && !model_.model.empty()) options_.ends = text::end_tokens(model_.source);
  options_.reader = ModelText::if_readable(model_);
  options_.stop.validate(options_.reader);
  model_.tokenizer = options_.reader.file();
  options_.texts = options_.prompts.empty() ? std::vector{read_prompt(options_.prompt, model_, options_.reader)}
                                            : read_prompts(options_.prompts, model_, options_.reader);
}

/// Refuses more replicas than there are texts.
void GenerateCommand::check_replicas(const GlobalOptions& global, const Layout& layout) const {
  const std::size_t texts = options_.texts.size();
  if (static_cast<std::size_t>(layout.data()) <= texts) return;
  const std::string why = texts == 1
                              ? "there is one text, and nothing for dp to do"
                              : fmt::format("there are {} texts, and dp gives each of {} replicas some", texts, layout.data());
  Layout alone = global.layout;
  std::erase_if(alone.axes, [](const Axis& axis) { return cuts_batch(row_of(axis.kind).cuts); });
  refuse(fmt::format("{}: generate can't decode so: {}; try --layout {}", ranks_as_typed(global), why,
                     alone.axes.empty() ? Layout::tsp(layout.ranks()).print() : decodable(alone).print()));
}

void GenerateCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global, kGenerateUse);
  const Layout layout = layout_of(global);
  check_decodable("generate", global);
  read_texts();
  check_replicas(global, layout);
  const std::size_t room = model_.shape.max_positions;
  check_room(options_.texts, 1, room);
  std::size_t shortest = room;
  std::size_t longest = 0;
  for (const Prompt& prompt : options_.texts) {
    shortest = std::min(shortest, prompt.ids.size());
    longest = std::max(longest, prompt.ids.size());
  }
  if (!options_.tokens.given() && longest + options_.tokens > room) {
    options_.tokens = room - longest;
    spdlog::info("--tokens {}: as many as the model's {} positions leave after {} tokens of a prompt", options_.tokens.value,
                 room, longest);
  }
  options_.tokens = checked("--tokens", options_.tokens, 1, room - shortest);
  check_room(options_.texts, options_.tokens, room);
  options_.sampling = options_.drawing.validated(model_.model.empty() ? std::filesystem::path() : model_.source,
                                                 model_.shape.vocabulary, model_.seed);
  validate_memory(model_, global, ModelUse::inference);
  const Chunks cut = Chunks::balanced(layout.data(), options_.texts.size());
  const auto own = [&](int replica) { return std::span(options_.texts).subspan(cut.offset(replica), cut.count(replica)); };
  check_need(
      model_, global, false, "its texts",
      [&](const theory::MeshSetting& of, int rank, const theory::PeakOptions& how) {
        std::vector<DecodedText> texts;  // what is added doesn't matter
        for (const Prompt& prompt : own(layout.data_place(rank)))
          texts.push_back({.prompt = prompt.ids, .added = std::vector<Token>(options_.tokens - 1)});
        return theory::decoding_counts(of, rank, texts, how).memory;
      },
      longest_first(layout.data(), own));
}

Inputs GenerateCommand::inputs() const {
  Inputs inputs = model_inputs(model_);
  if (const auto generation = model_.source / "generation_config.json"; !model_.model.empty() && file::exists(generation))
    inputs.files.push_back({"--model", generation, generation.filename().string()});
  if (!options_.prompts.empty()) inputs.files.push_back({"--prompts", options_.prompts});
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
