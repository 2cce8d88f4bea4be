// `tsprun tokenize`: makes token ids of texts with the tokenizer of a model's folder, and texts of ids.
#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_text.h"
#include "launcher/outputs.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "layers/io/file.h"
#include "layers/text/tokenizer.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <limits>
#include <optional>

namespace tsprun::detail::launcher {

namespace {

using text::Tokenizer;

constexpr std::uint64_t kMostText = std::uint64_t{1} << 40;

/// A file that gets its name when all is in it, or stdout.
class Destination {
 public:
  explicit Destination(const std::string& path) : path_(path) {
    if (path_ == "-") return;
    file_ = posix::UniqueFd(::open(partial().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file_) throw system_error(Cause::refused, fmt::format("--output {}: can't be written", path_), errno);
  }
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;
  ~Destination() {
    std::error_code ignored;
    if (file_) std::filesystem::remove(partial(), ignored);
  }

  void write(std::string_view bytes) const {
    const int error = posix::write_all(file_ ? file_.get() : lent_standard_output(), bytes);
    if (error != 0) throw system_error(Cause::refused, fmt::format("--output {}: writing", path_), error);
  }
  void publish() {
    if (!file_) return;
    file_.reset();
    std::filesystem::rename(partial(), path_);
  }

 private:
  std::string partial() const { return path_ + ".partial"; }

  std::string path_;
  posix::UniqueFd file_;
};

class Tokenize final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "tokenize",
            .help = "token ids of texts, by a model's tokenizer.json, or with --decode texts of ids",
            .examples = {"tsprun tokenize --model my-model book.txt --output tokens.u32",
                         "tsprun tokenize --model my-model --decode tokens.u32 --output -"},
            .ranks = RankUse::none,
            .multiplies = false};
  }

  void declare(OptionTable& table) override {
    table.add("FILES", files_, "texts in UTF-8, whose ids follow each other; with --decode files of ids (.u32, .bin, .npy)",
              Trait::computed | Trait::required | Trait::reads);
    table.add("--model DIR", model_, "a model's folder with its tokenizer.json", Trait::required | Trait::reads);
    table.add("--output FILE", output_, "where ids go, little-endian numbers of 32 bits, or with --decode the text; -: stdout",
              Trait::required | Trait::writes);
    table.add("--decode", decode_, "make a text of ids");
    table.add("--special", special_,
              "put the tokens around each text that the tokenizer puts around texts; with --decode print special tokens too");
    table.add("--eos TOKEN", eos_, "end each text, a document, with this token: its id, or its text, such as '<|endoftext|>'");
  }

  void validate(const GlobalOptions&) override {
    if (decode_ && !eos_.empty()) refuse(fmt::format("--eos {}: --decode makes no ids; leave one of them out", eos_));
    if (output_ != "-") check_writable("--output", output_);
    if (!decode_ && output_ != "-" && std::filesystem::path(output_).extension() != ".u32")
      refuse(fmt::format("--output {}: expected a name that ends in .u32, since ids have 32 bits", output_));
    for (const std::string& file : files_) {
      if (decode_ != names_ids(file))
        refuse(fmt::format("tokenize {}: expected {}", file,
                           decode_ ? "a file of ids that ends in .u32, as --output without --decode writes it, .bin or .npy"
                                   : "text; with --decode, files of ids are read"));
      static_cast<void>(file::open_to_read(file));
    }
  }

  int run(const GlobalOptions&, Report& report) override {
    const auto begin = std::chrono::steady_clock::now();
    const Tokenizer tokenizer = Tokenizer::load(model_);
    const auto loaded = std::chrono::steady_clock::now();
    if (!eos_.empty()) end_ = end_of_document(tokenizer, eos_, tokenizer.ids());
    Destination destination(output_);
    std::uint64_t bytes = 0;
    std::uint64_t tokens = 0;
    for (const std::string& file : files_) {
      if (decode_) decode(tokenizer, file, destination, bytes, tokens);
      else encode(tokenizer, file, destination, bytes, tokens);
    }
    destination.publish();
    const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
    const double load_seconds = seconds(begin, loaded);
    const double work_seconds = seconds(loaded, std::chrono::steady_clock::now());
    print("{} tokens, {} bytes of text, in {:.2f} s after {:.2f} s for the tokenizer\n", tokens, bytes, work_seconds,
          load_seconds);
    report.root()["tokenize"] = {{"tokens", tokens},
                                 {"bytes", bytes},
                                 {"vocabulary", tokenizer.ids()},
                                 {"load_seconds", load_seconds},
                                 {"seconds", work_seconds}};
    return 0;
  }

 private:
  void encode(const Tokenizer& tokenizer, const std::string& file, const Destination& destination, std::uint64_t& bytes,
              std::uint64_t& tokens) const {
    const std::string text = file::read_text(file, kMostText, "a text");
    std::vector<Token> ids;
    try {
      text::Encoder(tokenizer).encode(text, special_, ids, progress_of_tokens(file, text.size()));
    } catch (const Error& error) {
      if (error.cause() != Cause::refused) throw;
      refuse(fmt::format("{}: {}", file, error.what()));
    }
    if (end_) end_document(ids, *end_);
    destination.write({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Token)});
    bytes += text.size();
    tokens += ids.size();
  }

  void decode(const Tokenizer& tokenizer, const std::string& path, const Destination& destination, std::uint64_t& bytes,
              std::uint64_t& tokens) const {
    const TokenStream ids({path}, 0);
    text::TextStream stream(tokenizer, !special_);
    std::vector<Token> piece(std::size_t{1} << 16);
    std::string text;
    ids.check_vocabulary(tokenizer.ids());
    for (std::uint64_t at = 0; at < ids.size(); at += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), ids.size() - at)));
      ids.read(at, piece);
      for (const Token id : piece) text += stream.add(id);
      destination.write(text);
      bytes += text.size();
      text.clear();
    }
    text = stream.finish();
    destination.write(text);
    bytes += text.size();
    tokens += ids.size();
  }

  std::vector<std::string> files_;
  std::string model_;
  std::string output_;
  std::string eos_;
  std::optional<Token> end_;  ///< of each document
  bool decode_ = false;
  bool special_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() { return std::make_unique<Tokenize>(); }

}  // namespace tsprun::detail::launcher
