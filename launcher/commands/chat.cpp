// `tsprun chat`: a conversation with a model, in the form that its chat template gives. Rank 0 reads what is typed and renders
// the conversation; all ranks decode the answer. The cache of keys and values is kept from turn to turn, as far as the tokens
// agree.
#include "layers/text/chat.h"
#include "core/kernels/finite.h"
#include "launcher/commands/command.h"
#include "launcher/commands/decoding.h"
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
#include "layers/text/characters.h"
#include "layers/text/generation_config.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kChatUse{
    .model_folder = true, .data = false, .seed = true, .recompute = false, .audit = false, .as_stored = true};
constexpr std::size_t kUsualContext = 4096;
constexpr std::size_t kLongestLine = std::size_t{16} << 20;

/// The options of `chat`, each with its default.
struct ChatOptions {
  std::string system;
  Given<std::size_t> context{kUsualContext};
  Given<std::size_t> tokens{1024};
  DrawingOptions drawing;
  StopOptions stop;

  // Values derived during validation, not given on the command line.
  ModelText reader;
  std::optional<text::ChatFormat> format;
  std::vector<Token> ends;
  SamplingOptions sampling;
  std::size_t positions = 0;   ///< of the model
  std::size_t vocabulary = 0;  ///< likewise
  bool terminal = false;       ///< somebody types

  /// Adds the rows of the options.
  void declare(OptionTable& table) {
    using enum Trait;
    table.group("Conversation");
    table.add("--system TEXT", system, "what the conversation begins with, as the system's message");
    table.add("--context N", context,
              "tokens of the whole conversation that fit; without this option fewer where the model has fewer positions");
    table.add("--tokens N", tokens, "tokens of an answer at most");
    drawing.declare(table);
    stop.declare(table);
  }
};

/// Throws Error(refused) unless a text is UTF-8. `name` is the text in the message.
void check_utf8(const char* name, std::string_view text) {
  std::size_t wrong = 0;
  if (const std::size_t good = text::utf8_prefix(text, wrong); good != text.size())
    throw Error(Cause::refused, fmt::format("{}: byte {} of a message isn't UTF-8", name, good));
}

/// Lines of stdin, for a rank that must not stop giving signs of life while it waits for them.
class Lines {
 public:
  /// Returns the next line; nothing at the end. Throws Error(refused).
  std::optional<std::string> next(Context& context) {
    for (;;) {
      if (const std::size_t end = pending_.find('\n'); end != std::string::npos) return take(end);
      if (ended_ && pending_.empty()) return {};
      if (ended_) return take(pending_.size());
      constexpr int kBetweenTicks_ms = 20;
      pollfd ready{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int count = ::poll(&ready, 1, kBetweenTicks_ms);
      context.tick();
      if (count > 0) read();
    }
  }

 private:
  void read() {
    std::array<char, 1 << 16> bytes;
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count < 0) throw system_error(Cause::refused, "stdin can't be read", errno);
    if (count == 0) ended_ = true;
    pending_.append(bytes.data(), static_cast<std::size_t>(count));
    if (pending_.size() > kLongestLine)
      throw Error(Cause::refused, fmt::format("stdin: a line of more than {} bytes", kLongestLine));
  }
  std::string take(std::size_t bytes) {
    std::string line = pending_.substr(0, bytes);
    pending_.erase(0, bytes + 1);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  std::string pending_;
  bool ended_ = false;
};

/// Gives a list of tokens of rank 0 to all ranks. Collective.
void share(Communicator& world, std::vector<Token>& ids) {
  auto count = static_cast<std::int64_t>(ids.size());
  world.broadcast(Buffer(&count, 1, DType::i64), 0);
  ids.resize(static_cast<std::size_t>(count));
  if (count > 0) world.broadcast(Buffer(ids.data(), ids.size(), DType::i32), 0);
}

/// The conversation on one rank: the cache, and on rank 0 what was said.
class Conversation {
 public:
  Conversation(Session& session, Context& context, Model& model, const ChatOptions& options)
      : session_(session),
        context_(context),
        model_(model),
        options_(options),
        decoder_(session.rank(), model, {options.context}) {
    if (!options.system.empty()) messages_.push_back({{"role", "system"}, {"content", options.system}});
  }

  /// Answers until there is no further message, or no room for it.
  void run() {
    for (;;) {
      std::vector<Token> ids = asked();
      share(session_.world(), ids);
      if (ids.empty()) return;
      answer(ids);
    }
  }

  nlohmann::ordered_json report() const {
    const double seconds = static_cast<double>(decode_ns_) * 1e-9;
    return {{"answers", answers_},
            {"sampling", sampling_json(options_.sampling)},
            {"tokens", tokens_},
            {"kept_tokens", kept_},
            {"decode_tokens_per_s", decoded_ > 0 ? static_cast<double>(decoded_) / seconds : 0.0}};
  }

 private:
  /// Returns the tokens of the conversation with the next message; none: it ends. On other ranks than 0 none. On a terminal a
  /// message that can't be taken is refused, and the next one asked for; elsewhere the error ends the conversation.
  std::vector<Token> asked() {
    if (!session_.speaks()) return {};
    for (;;) {
      if (options_.terminal) session_.sink().text("> ");
      const std::optional<std::string> line = lines_.next(context_);
      if (!line) {
        if (options_.terminal) session_.sink().text("\n");
        return {};
      }
      if (line->empty()) continue;
      const std::size_t before = messages_.size();
      try {
        check_utf8("stdin", *line);
        messages_.push_back({{"role", "user"}, {"content", *line}});
        std::vector<Token> ids = options_.reader.ids_within(options_.format->render(messages_, now_), "the conversation");
        check(ids);
        return ids;
      } catch (const Error& error) {
        if (!options_.terminal || error.cause() != Cause::refused) throw;
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(before), messages_.end());
        session_.sink().text(fmt::format("not taken: {}\n", error.what()));
      }
    }
  }

  /// Throws Error(refused) unless there is something to answer, the model has its tokens, and there is room for an answer.
  void check(const std::vector<Token>& ids) const {
    for (const Token id : ids) {
      if (static_cast<std::size_t>(id) >= options_.vocabulary)
        throw Error(Cause::refused, fmt::format("the conversation has token {}, and the model's vocabulary {} ids: its "
                                                "tokenizer.json is another model's",
                                                id, options_.vocabulary));
    }
    const std::size_t tokens = ids.size();
    const std::size_t most = options_.context;
    if (tokens == 0) throw Error(Cause::refused, "the chat template makes an empty text of the conversation");
    if (tokens < most) return;
    const std::size_t wanted = std::min(2 * tokens, options_.positions);
    throw Error(Cause::refused, fmt::format("the conversation has {} tokens, and {} fit with the answer; begin a new one{}",
                                            tokens, most, wanted > tokens ? fmt::format(", or try --context {}", wanted) : ""));
  }

  /// Puts the conversation into the cache, of which it keeps what agrees. Returns the logits of what follows.
  ConstTensor put_in(const std::vector<Token>& ids) {
    // A step costs about what this many tokens cost in a pass over all, since each step reads all weights: with 8 layers of
    // h = 1024 on two cores 7.3 in bf16 and 10.9 in f32 (`generate --prompt any.u32`, its prefill and decode_tokens_per_s).
    constexpr std::size_t kTokensOfAStep = 8;
    const auto differ = std::ranges::mismatch(ids, cached_);
    const std::size_t same = std::min(static_cast<std::size_t>(differ.in1 - ids.begin()), ids.size() - 1);
    const std::size_t rest = ids.size() - same;
    ConstTensor logits;
    if (same == 0 || kTokensOfAStep * rest > ids.size()) {
      decoder_.forget();
      logits = decoder_.prompt(std::span(&ids, 1));
    } else {
      kept_ += same;
      decoder_.shorten(0, same);
      for (std::size_t i = same; i < ids.size(); ++i) logits = decoder_.step(std::span(ids).subspan(i, 1));
    }
    cached_ = ids;
    return logits;
  }

  void answer(const std::vector<Token>& ids) {
    ConstTensor logits = put_in(ids);
    const std::uint64_t begun = posix::now_ns();
    TokenText text(options_.reader, options_.stop.texts);
    std::string said;
    std::vector<Token> tokens;
    const auto say = [&](const std::string& piece) {
      said += piece;
      if (session_.speaks() && !piece.empty()) session_.sink().text(piece);
    };
    const std::size_t most = std::min<std::size_t>(options_.tokens, options_.context - ids.size());
    for (std::size_t number = 1;; ++number) {
      if (kernels::first_not_finite(logits.select(0, 0))) blame();
      const Token next = sample(logits.select(0, 0), options_.sampling, tokens_++, cached_);
      const bool ended = std::ranges::find(options_.ends, next) != options_.ends.end() ||
                         std::ranges::find(options_.stop.tokens, next) != options_.stop.tokens.end();
      tokens.push_back(next);
      if (!ended) say(text.add({&next, 1}));
      if (ended || text.stopped() || number == most) break;
      logits = decoder_.step({&next, 1});
      cached_.push_back(next);
      ++decoded_;
    }
    decode_ns_ += posix::now_ns() - begun;
    say(text.finish());
    if (!session_.speaks()) return;
    session_.sink().text("\n");
    messages_.push_back({{"role", "assistant"}, {"content", said}});
    answers_.push_back({{"text", said}, {"tokens", tokens}});
  }

  /// Throws an error that names the first tensor that isn't finite.
  [[noreturn]] void blame() {
    blame_not_finite(session_.rank(), session_.world(), model_.parameters(),
                     {.what = fmt::format("token {} of the conversation: its logits aren't finite", decoder_.length(0)),
                      .advice = "--dtype f64 shows whether numbers outgrew this type",
                      .run = [&] {
                        decoder_.forget();
                        decoder_.prompt(std::span(&cached_, 1));
                      }});
  }

  Session& session_;
  Context& context_;
  Model& model_;
  const ChatOptions& options_;
  Decoder decoder_;
  Lines lines_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::time_t now_ = std::time(nullptr);
  std::vector<Token> cached_;
  nlohmann::ordered_json answers_ = nlohmann::ordered_json::array();
  std::size_t tokens_ = 0;   // of all answers
  std::size_t kept_ = 0;     // tokens that were in the cache when a message came
  std::size_t decoded_ = 0;  // steps of answers
  std::uint64_t decode_ns_ = 0;
};

/// The command `chat`.
class ChatCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "chat",
            .help = "talk with a model: a message a line, from the terminal or stdin",
            .examples = {"tsprun chat --model SmolLM2-360M-Instruct --dtype bf16",
                         "tsprun -n 2 chat --model SmolLM2-360M-Instruct --system 'Answer in a sentence.' --temperature 0"}};
  }
  void declare(OptionTable& table) override {
    model_.declare(table, kChatUse);
    options_.declare(table);
  }
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override {
    Inputs inputs = model_inputs(model_);
    for (const char* name : {"tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
      if (file::exists(model_.source / name)) inputs.files.push_back({"--model", model_.source / name, name});
    }
    return inputs;
  }
  int run(const GlobalOptions& global, Report& report) override {
    report_model(report, model_);
    return run_job({.global = &global,
                    .rank_main = [&](Context& context, ReportSink& sink) { chat(context, sink, global); },
                    .reads_stdin = true},
                   report);
  }

 private:
  void chat(Context& context, ReportSink& sink, const GlobalOptions& global) const {
    Session session(context, sink, global);
    RunWeights weights(session, model_);
    Model model(session.rank(), session.mesh(), model_options(model_, false));
    weights.fill(model);
    Conversation conversation(session, context, model, options_);
    const auto keep = [&] {
      if (session.speaks()) sink.set("chat", conversation.report());
    };
    try {
      conversation.run();
    } catch (...) {
      keep();  // the answers that were given
      throw;
    }
    keep();
    session.finish();
  }

  ModelCommandOptions model_;
  ChatOptions options_;
};

void ChatCommand::validate(const GlobalOptions& global) {
  if (model_.model.empty()) refuse("chat needs --model DIR: a folder with a tokenizer.json and a chat template");
  validate_model(model_, global, kChatUse);
  check_decodable("chat", global);
  const Layout layout = layout_of(global);
  if (layout.data() > 1)
    refuse(fmt::format("{}: there is one conversation, and nothing for dp to do; leave dp out", ranks_as_typed(global)));
  check_utf8("--system", options_.system);
  options_.format = text::ChatFormat::load(model_.source);
  options_.reader = ModelText::of(model_);
  model_.tokenizer = options_.reader.file();
  if (!options_.reader.tokenizer()) static_cast<void>(text::Tokenizer::load(model_.source));  // says what is missing
  options_.stop.validate(options_.reader);
  options_.ends = text::end_tokens(model_.source);
  if (const auto end = options_.reader.tokenizer()->find(options_.format->special("eos_token"))) options_.ends.push_back(*end);
  const std::size_t positions = options_.positions = model_.shape.max_positions;
  options_.vocabulary = model_.shape.vocabulary;
  if (!options_.context.given()) options_.context = std::min(kUsualContext, positions);
  options_.context = checked("--context", options_.context, 2, positions);
  options_.tokens =
      checked("--tokens", options_.tokens, 1, std::max(positions, options_.tokens.given() ? positions : options_.tokens.value));
  options_.sampling = options_.drawing.validated(model_.source, model_.shape.vocabulary, model_.seed);
  options_.terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  validate_memory(model_, global, ModelUse::inference);
  check_need(model_, global, false, "a conversation of --context tokens",
             [&](const theory::MeshSetting& of, int rank, const theory::PeakOptions& how) {
               const std::vector<DecodedText> texts = {{.prompt = std::vector<Token>(options_.context - 1), .added = {0}}};
               return theory::decoding_counts(of, rank, texts, how).memory;
             });
}

}  // namespace

std::unique_ptr<Command> make_chat() { return std::make_unique<ChatCommand>(); }

}  // namespace tsprun::detail::launcher
