// Declares, parses and checks the options, finds the model's folder, and estimates memory.
#include "launcher/model/model_options.h"

#include "launcher/model/document_option.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_text.h"
#include "launcher/output.h"
#include "launcher/refuse.h"
#include "layers/checkpoints/checkpoint.h"
#include "layers/io/data.h"
#include "layers/io/json_text.h"
#include "layers/layout/check_layout.h"
#include "layers/model/model.h"
#include "layers/parameters/model_folder.h"
#include "layers/parameters/place.h"
#include "layers/theory/layouts.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/number.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kUsualSequence = 1024;
constexpr std::int64_t kLargestBatch = 1 << 20;
/// A number of bytes that no machine has, and that is far from overflow.
constexpr double kUncountable = 0x1p60;

std::uint64_t parse_seed(const std::string& option, const std::string& text) {
  const std::optional<std::uint64_t> value = number_from<std::uint64_t>(text);
  if (!value) {
    refuse(fmt::format("{} {}: a whole number from 0 to {} works; try {} 0", option, text,
                       std::numeric_limits<std::uint64_t>::max(), option));
  }
  return *value;
}

/// Finds the folder that holds the model, and checks it against its manifest if it is a checkpoint.
void find_folder(ModelCommandOptions& options) {
  const FoundModel found = [&] {
    try {
      return find_model_folder(options.model, !options.unchecked);
    } catch (const Error& error) {
      if (error.cause() != Cause::refused) throw;
      refuse(fmt::format("--model {}", error.what()));
    }
  }();
  for (const std::string& line : found.skipped) spdlog::warn("skipped a checkpoint: {}", line);
  if (found.has_manifest && options.unchecked)
    spdlog::warn("--no-checksum: {} isn't held against its manifest", found.folder.string());
  if (found.folder != std::filesystem::path(options.model)) spdlog::info("--model {}: {}", options.model, found.folder.string());
  options.model = found.folder.string();
}

/// Returns the names of the built-in models: "nano, micro".
std::string built_in_names() {
  std::vector<std::string> names;
  for (const ModelConfig& config : built_in_configs()) names.push_back(config.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns whether --config names a file. A built-in configuration is told from one by its name, as find_config() does it.
bool config_is_file(const ModelCommandOptions& options) {
  return !options.config.empty() &&
         std::ranges::find(built_in_configs(), options.config, &ModelConfig::name) == built_in_configs().end();
}

void find_model(ModelCommandOptions& options, const ModelOptionUse& use) {
  if (options.unchecked && options.model.empty())
    refuse("--no-checksum: it spares --model DIR the check against its manifest, and there is no --model; leave it out");
  if (options.resumed && options.config.empty()) {
    options.shape = *options.resumed;
    return;
  }
  if (options.config.empty() && options.model.empty()) {
    refuse(fmt::format("no model: give --config NAME|FILE ({}, or a config.json){}", built_in_names(),
                       use.model_folder ? " or --model DIR" : ""));
  }
  if (!options.config.empty() && !options.model.empty()) {
    refuse(fmt::format("--config {} and --model {}: a model folder brings its own config; give one of them", options.config,
                       options.model));
  }
  LoadedConfig loaded;
  if (options.model.empty()) {
    loaded = find_config(options.config);
    if (!options.resumed && config_is_file(options)) options.source = options.config;
  } else {
    find_folder(options);
    options.source = options.model;
    loaded = read_config(std::filesystem::path(options.model) / "config.json");
    const ModelFolder weights(options.model);
    const std::vector<Parameter> parameters = model_parameters(loaded.config);
    options.weights = weights.paths();
    if (const std::string unused = weights.check(parameters, loaded.sees_images); !unused.empty()) spdlog::warn("{}", unused);
    const auto is_bf16 = [&](const Parameter& parameter) {
      return !parameter.is_matrix() || weights.find(parameter.name)->type == stored_type_of(DType::bf16);
    };
    if (use.as_stored && !options.dtype.given() && std::ranges::all_of(parameters, is_bf16)) {
      options.dtype = DType::bf16;
      spdlog::info("computed in bf16, as the model's matrices are stored; --dtype f32 keeps more digits");
    }
  }
  for (const std::string& warning : loaded.warnings) spdlog::warn("{}", warning);
  options.shape = loaded.config;
  if (options.resumed && !options.shape.same_model(*options.resumed)) {
    refuse(fmt::format("--config {}: another model than the checkpoint's, {}; leave --config out", options.config,
                       options.resumed->name));
  }
}

void find_sequence(ModelCommandOptions& options, const ModelOptionUse& use) {
  const std::size_t positions = options.shape.max_positions;
  options.sequence = std::min(kUsualSequence, positions);
  if (!options.sequence.given()) return;
  const std::size_t most = use.beyond && !options.shape.learned_positions ? std::max(positions, kMostTokens) : positions;
  const std::string& text = options.sequence.text;
  std::uint64_t wanted = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wanted);
  if (end == text.data() + text.size() && (error == std::errc::result_out_of_range || wanted > most)) {
    refuse(fmt::format("--seq {}: {} has {} positions; try --seq {}", text, options.shape.name, positions, positions));
  }
  options.sequence = static_cast<std::size_t>(parse_integer("--seq", text, 1, static_cast<std::int64_t>(most)));
  if (options.sequence > positions) {
    spdlog::warn(
        "--seq {}: {} has {} positions (max_position_embeddings); counted all the same, since rotary positions go on, but "
        "train, eval and generate refuse it",
        text, options.shape.name, positions);
  }
}

std::string as_mebibytes(double bytes) { return fmt::format("{:.1f} MiB", bytes / (1 << 20)); }

/// Bytes that a rank holds in any case.
struct Holdings {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double total() const { return parameters + gradients + optimizer + activations; }
};

Holdings holdings(const theory::MeshSetting& mesh, int rank, ModelUse use) {
  const theory::MeshPlace place = theory::place_of(mesh.layout, rank);
  const bool training = use != ModelUse::inference;
  const theory::RankParameters parameters = theory::held(mesh, place);
  const CategoryBytes held = held_bytes(parameters.total(), parameters.states, mesh.setting.bytes, training);
  return {.parameters = static_cast<double>(held[Category::parameters]),
          .gradients = static_cast<double>(held[Category::gradients]),
          .optimizer = static_cast<double>(held[Category::optimizer]),
          .activations = training ? static_cast<double>(theory::activation_bytes(mesh, place, 0)) : 0};
}

/// Warns if no document ends in the first tokens of the data.
void look_for_ends(const TokenStream& stream, const ModelCommandOptions& options) {
  constexpr std::uint64_t kLookedAt = std::uint64_t{1} << 20;
  std::vector<Token> first(static_cast<std::size_t>(std::min(kLookedAt, stream.size())));
  stream.read(0, first);
  if (std::ranges::find(first, *options.document_end) != first.end()) return;
  spdlog::warn("--eos {}: none of the {} tokens of --data is {}, so no document ends there", options.eos,
               first.size() < stream.size() ? fmt::format("first {}", first.size()) : std::to_string(first.size()),
               *options.document_end);
}

}  // namespace

Setting ModelCommandOptions::setting() const {
  Setting setting;
  setting.model = shape;
  setting.batch = batch;
  setting.sequence = sequence;
  setting.bytes = ElementBytes::of(dtype);
  setting.recompute = recompute;
  setting.micro_batches = micro_batches;
  setting.documents = lengths;
  return setting;
}

void ModelCommandOptions::declare(OptionTable& table, const ModelOptionUse& use) {
  using enum Trait;
  table.group("Model");
  table.add("--config NAME|FILE", config, fmt::format("a built-in model ({}) or a Hugging Face config.json", built_in_names()),
            use.model_folder || use.swept ? reads : reads | required);
  if (use.model_folder) {
    table.add(
        "--model DIR", model,
        "a Hugging Face folder: config.json, model.safetensors or shards with their index; of a folder that --save wrote, the "
        "newest checkpoint",
        reads);
    table.add("--no-checksum", unchecked, "use a checkpoint without reading all of it against its manifest first");
  }
  if (use.data) {
    if (use.files) {
      table.add("--data FILE", data,
                "files that make one stream: text, read by the model's tokenizer.json, else as bytes; token ids: .bin "
                "(little-endian uint16), .u32 (uint32), .npy",
                reads);
      OptionRow& row = table.add("--eos TOKEN", eos,
                                 "end each text file of --data, a document, with this token: its id, or its text, such as "
                                 "'<|endoftext|>'");
      row.restore = [this](const CheckpointState& state) {
        if (eos.empty()) eos_restored = !(eos = state.end_of_document).empty();
      };
      row.record = [this](CheckpointState& state) { state.end_of_document = eos; };
      row.difference = [](const CheckpointState& saved, const CheckpointState& now) {
        if (saved.end_of_document == now.end_of_document) return std::string();
        const auto shown = [](const std::string& token) { return token.empty() ? "none" : printable(token); };
        return fmt::format("{} now, {} in the checkpoint", shown(now.end_of_document), shown(saved.end_of_document));
      };
      OptionRow& reset =
          table.add("--reset-attention", reset_attention,
                    "let a document end with each token of --eos in --data, also in files of ids: attention doesn't "
                    "cross it, positions begin anew behind it, and what follows it isn't predicted");
      reset.restore = [this](const CheckpointState& state) { reset_attention = reset_attention || state.reset_attention; };
      reset.record = [this](CheckpointState& state) { state.reset_attention = reset_attention; };
      reset.difference = [](const CheckpointState& saved, const CheckpointState& now) {
        return saved.reset_attention == now.reset_attention ? std::string() : "given now, not in the checkpoint";
      };
    }
    table.add("--batch B", batch, "sequences in all", Whole{1, kLargestBatch}).saved(&CheckpointState::batch);
    table.add("--seq S", sequence, "tokens of a sequence; default: 1024, or the config's maximum if less", computed)
        .saved(&CheckpointState::sequence);
    if (use.documents) {
      table.add("--documents LENGTHS", documents,
                "documents that each sequence packs, which attention doesn't cross, as with train's --reset-attention: their "
                "lengths, such as 8192,4096,2x2048, or 8x: eight equal ones; without it a sequence is one document");
    }
  }
  if (use.as_stored) {
    table.add("--dtype TYPE", dtype,
              "of weights and activations: {}; default: f32, or bf16 if all matrices of --model are stored so", dtypes(),
              Trait::computed);
  } else {
    table.add("--dtype TYPE", dtype, "of weights and activations: {}", dtypes()).saved(&CheckpointState::dtype);
  }
  if (use.recompute) {
    table.add("--recompute MODE", recompute, "what the backward pass makes again: {}", recompute_modes());
  }
  if (use.micro_batches) {
    table
        .add("--micro-batches M", micro_batches,
             "parts of each data rank's sequences, computed one after another; gradients add up, activations are one part's",
             Whole{1, kLargestBatch})
        .saved(&CheckpointState::micro_batches);
  }
  if (use.audit && use.ranks) {
    table.add("--audit MODE", strict_audit,
              "{}: whether a byte that isn't as forecast only shows in the audit, or makes the exit code 1, too", audit_modes());
  }
  if (use.seed) {
    table.add("--seed N", seed, "of fresh weights and training data", parse_seed).saved(&CheckpointState::seed);
  }
}

void check_training_options(const ModelCommandOptions& options, bool forward) {
  if (!forward) return;
  if (options.recompute.given()) {
    refuse(fmt::format("--recompute {}: a forward pass keeps nothing that could be made again; leave --forward out",
                       options.recompute.text));
  }
  if (options.micro_batches.given()) {
    refuse(
        fmt::format("--micro-batches {}: they are a training step's, and a forward pass takes its batch as it is; leave "
                    "--forward out",
                    options.micro_batches.text));
  }
}

void validate_model(ModelCommandOptions& options, const GlobalOptions& global, const ModelOptionUse& use) {
  if (!global.trace.empty()) check_writable("--trace", global.trace);
  OptionTable table;
  options.declare(table, use);
  table.parse();
  find_model(options, use);
  if (use.ranks) check_heads(global, options.shape);
  if (use.ranks && !use.only_trains) {
    if (const std::string why = why_only_trained(layout_of(global)); !why.empty())
      refuse(fmt::format("{}: {}", ranks_as_typed(global), why));
  }
  if (global.gemm.given() && global.gemm == kernels::GemmLibrary::openblas && options.dtype == DType::bf16)
    spdlog::warn("--gemm openblas: tsprun's own kernels multiply bf16 matrices, so it changes little in bf16");
  if (!use.data) return;
  find_sequence(options, use);
  options.lengths = parse_documents(options.documents, options.sequence);
  if (options.batch > kMostTokens / options.sequence) {
    refuse(fmt::format("--batch {}: times --seq {} is more than 2^31 tokens; try --batch {}", options.batch, options.sequence,
                       std::max<std::size_t>(1, kMostTokens / options.sequence)));
  }
}

void validate_data(ModelCommandOptions& options, bool sequence_needed) {
  if (options.data.empty()) refuse("no data: give --data FILE… (text; .bin, .u32 and .npy are token ids)");
  if (options.reset_attention && options.eos.empty())
    refuse("--reset-attention: it needs to know with which token a document ends; give --eos TOKEN");
  options.document_end.reset();
  if (!std::ranges::all_of(options.data, [](const std::string& file) { return names_ids(file); })) {
    const ModelText text = ModelText::of(options);
    std::optional<Token> end;
    if (!options.eos.empty() && text.ids_are_bytes())
      refuse(fmt::format("--eos {}: this model's ids are bytes, of which none ends a text; leave --eos out", options.eos));
    if (!options.eos.empty() && text.tokenizer()) end = end_of_document(text.tokenizer(), options.eos, options.shape.vocabulary);
    if (options.texts.empty()) options.texts = text.ids_of(options.files(), end);
    options.tokenizer = text.file();
    if (options.reset_attention) options.document_end = end;
  } else if (options.reset_attention) {
    options.document_end = end_of_document(ModelText::if_readable(options).tokenizer(), options.eos, options.shape.vocabulary);
  } else if (!options.eos.empty() && !options.eos_restored) {
    refuse(
        fmt::format("--eos {}: it ends texts, and files of token ids, as all of --data are, have their own ends of documents; "
                    "leave --eos out, or give --reset-attention, too, which heeds them",
                    options.eos));
  }
  const TokenStream stream = options.stream();
  options.tokens = stream.size();
  if (sequence_needed) check_training_data(options.tokens, options.sequence);
  stream.check_vocabulary(options.shape.vocabulary);
  if (options.document_end) look_for_ends(stream, options);
}

void validate_memory(const ModelCommandOptions& options, const GlobalOptions& global, ModelUse use) {
  const theory::MeshSetting mesh{.setting = options.setting(), .layout = layout_of(global)};
  const int ranks = mesh.layout.ranks();
  Holdings largest;
  int where = 0;
  double together = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Holdings each = holdings(mesh, rank, use);
    together += each.total();
    if (each.total() > largest.total()) {
      largest = each;
      where = rank;
    }
  }
  const std::string parts =
      use == ModelUse::inference
          ? fmt::format("parameters {}", as_mebibytes(largest.parameters))
          : fmt::format("parameters {}, gradients {}, optimizer {}, saved activations {}", as_mebibytes(largest.parameters),
                        as_mebibytes(largest.gradients), as_mebibytes(largest.optimizer), as_mebibytes(largest.activations));
  const auto budget = static_cast<double>(global.mem_per_rank.value);
  if (global.mem_per_rank != 0 && largest.total() > budget) {
    refuse(fmt::format(
        "--mem-per-rank {}: too small by at least {}: rank {} holds {}, and buffers beside it; {} need less",
        global.mem_per_rank.text, as_mebibytes(largest.total() - budget), where, parts,
        use == ModelUse::inference ? "more ranks or --dtype bf16" : "more ranks, --recompute full or a shorter --seq"));
  }
  const auto available = static_cast<double>(machine::available_memory());
  if (together > kUncountable || (available > 0 && together > available)) {
    refuse(fmt::format("{}: {} would hold {} together (rank {}: {}), {} are available; take {}", options.shape.name,
                       ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks), as_mebibytes(together), where, parts,
                       as_mebibytes(available),
                       use == ModelUse::inference ? "a smaller model or --dtype bf16" : "a smaller --config, --batch or --seq"));
  }
}

Inputs model_inputs(const ModelCommandOptions& options) {
  Inputs inputs{.kernels = true, .files = {}};
  for (const std::filesystem::path& file : options.files()) inputs.files.push_back({"--data", file});
  if (config_is_file(options)) inputs.files.push_back({"--config", options.config});
  if (!options.tokenizer.empty())
    inputs.files.push_back(
        {options.model.empty() ? "--resume" : "--model", options.tokenizer, options.tokenizer.filename().string()});
  if (options.model.empty()) return inputs;
  std::vector<std::filesystem::path> read = options.weights;
  read.insert(read.begin(), std::filesystem::path(options.model) / "config.json");
  for (const std::filesystem::path& file : read) inputs.files.push_back({"--model", file, file.filename().string()});
  return inputs;
}

void report_model(Report& report, const ModelCommandOptions& options) {
  report.root()["dtype"] = std::string(name(options.dtype.value));
  report.root()["batch"] = options.batch.value;
  report.root()["seq"] = options.sequence.value;
  report.root()["recompute"] = recompute_name(options.recompute);
}

ProgressLine::Style progress_style(const GlobalOptions& global) {
  if (global.quiet) return ProgressLine::Style::silent;
  return redraws_lines(STDOUT_FILENO) ? ProgressLine::Style::terminal : ProgressLine::Style::lines;
}

void refuse_fifo(const std::string& option, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode))
    refuse(fmt::format(
        "{} {}: a FIFO is no regular file, and this one is written in several pieces by several processes; name a file", option,
        path));
}

void check_writable(const std::string& option, const std::string& path) {
  refuse_fifo(option, path);
  const bool is_new = ::access(path.c_str(), F_OK) != 0;
  const posix::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file) {
    throw system_error(Cause::refused,
                       fmt::format("{} {}: the file can't be written; name one in a folder that exists", option, path), errno);
  }
  // Another check may still refuse the command, and then nothing must have been written.
  if (is_new) ::unlink(path.c_str());
}

}  // namespace tsprun::detail::launcher
