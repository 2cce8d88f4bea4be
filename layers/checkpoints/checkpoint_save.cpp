// Saves a checkpoint. All ranks go through the same parts; after each part they agree that none failed:
//
//   create     rank 0    DIR, step-NNNNNN.partial/, config.json, the other files at their full size (a full disk fails here)
//   write      all       the parts that this rank counts
//   checksum   all       blocks of the files in turns
//   publish    rank 0    manifest.json, sync, rename
//   delete     rank 0    checkpoints beyond `keep`
#include "layers/checkpoints/checkpoint.h"

#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/checkpoints/checkpoint_tensors.h"
#include "layers/io/digest.h"
#include "layers/io/file.h"
#include "layers/io/safetensors_writer.h"
#include "layers/parameters/agreement.h"
#include "layers/parameters/not_finite.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <span>
#include <system_error>
#include <unistd.h>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

// Bytes written between two syncs: little enough for a slow disk to take within seconds.
constexpr std::uint64_t kUnsyncedBytes = std::uint64_t{64} << 20;

std::string_view torch_name(DType dtype) {
  return dtype == DType::f64 ? "float64" : dtype == DType::f32 ? "float32" : "bfloat16";
}

void write_text(const fs::path& path, std::string_view text) {
  constexpr mode_t kMode = 0644;
  const posix::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file) throw system_error(Cause::refused, fmt::format("{}: can't be opened to write", path.string()), errno);
  file::write(file, path, 0, std::as_bytes(std::span(text)));
  file::sync(file, path);
}

class Save {
 public:
  Save(Rank& rank, Communicator& ranks, const ParameterStore& store, const ModelConfig& config, const CheckpointState& state,
       const fs::path& dir, const SaveOptions& options)
      : rank_(rank),
        ranks_(ranks),
        store_(store),
        config_(config),
        state_(state),
        dir_(dir),
        options_(options),
        tensors_(checkpoint_tensors(store.dtype())),
        config_json_(
            hugging_face_json(config, torch_name(store.dtype()), options.source != nullptr ? options.source->config : "")),
        parameters_(model_parameters(config)) {}

  SavedCheckpoint run() {
    check();
    part("create", [&] {
      plan();
      if (leads()) create();
    });
    part("write", [&] { write(); });
    part("checksum", [&] { checksum(); });
    gather();
    part("publish", [&] {
      if (leads()) publish();
    });
    part("delete", [&] {
      if (leads()) delete_old();
    });
    return std::move(saved_);
  }

  /// Deletes what was written. Explicit, because a rank that ends by an uncaught exception may run no destructors.
  void abandon() {
    files_.clear();
    folder_.reset();
  }

 private:
  bool leads() const { return ranks_.rank() == 0; }
  std::span<const CarriedFile> carried() const {
    return options_.source != nullptr ? std::span<const CarriedFile>(options_.source->files) : std::span<const CarriedFile>();
  }

  template <class Body>
  void part(std::string_view name, Body&& body) {
    agree(ranks_, [&] {
      if (options_.on_part) options_.on_part(name);
      body();
    });
  }

  void check() {
    if (!store_.training()) throw Error(Cause::refused, "a checkpoint needs parameters that are trained");
    if (store_.dtype() != state_.dtype) {
      throw Error(Cause::refused,
                  fmt::format("a checkpoint in {} can't be made of parameters in {}", name(state_.dtype), name(store_.dtype())));
    }
    // Elements that no rank counts would be missing from the files.
    double counted = 0;
    double expected = 0;
    for (const ParameterPart& part : store_.states()) {
      if (part.plan.counted) counted += static_cast<double>(part.plan.rows() * part.plan.width());
    }
    for (const Parameter& parameter : parameters_) expected += static_cast<double>(parameter.elements());
    ranks_.all_reduce(std::span(&counted, 1), Reduction::sum);
    if (counted != expected) {
      throw Error(Cause::refused,
                  fmt::format("the ranks of a checkpoint count {} elements of parameters; the model has {}", counted, expected));
    }
  }

  void plan() {
    const fs::path folder = dir_ / (step_folder(state_.step) + ".partial");
    for (const CheckpointTensors& kind : tensors_) {
      std::vector<safetensors::PlannedTensor> planned;
      for (const Parameter& parameter : parameters_)
        planned.push_back({exported_name(config_, parameter), kind.dtype, parameter.shape});
      plans_.emplace_back(planned);
      paths_.push_back(folder / kind.file);
    }
  }

  void create() {
    folder_ = std::make_unique<PartialFolder>(dir_, state_.step);
    write_text(folder_->path() / "config.json", config_json_);
    for (const CarriedFile& file : carried()) {
      write_text(folder_->path() / file.name, file.bytes);
      rank_.tick();
    }
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      files_.push_back(safetensors::Writer::create(paths_[i], plans_[i], [this] { rank_.tick(); }));
    }
  }

  void write() {
    if (!leads()) {
      for (std::size_t i = 0; i < plans_.size(); ++i) files_.push_back(safetensors::Writer::join(paths_[i], plans_[i]));
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const ParameterPart& part : store_.states()) {
        if (part.plan.counted) write_part(files_[i], part, part.*tensors_[i].member);
      }
      files_[i].sync();
      unsynced_ = 0;
      rank_.tick();
    }
  }

  /// Writes one part.
  void write_part(safetensors::Writer& file, const ParameterPart& part, const Tensor& tensor) {
    for_natural_blocks(rank_, part.plan, tensor, [&](const safetensors::Rectangle& block, ConstBuffer from) {
      file.write(exported_name(config_, part.plan.parameter), block, from);
      unsynced_ += from.as_bytes().size();
      if (unsynced_ < kUnsyncedBytes) return;
      file.sync();
      unsynced_ = 0;
    });
  }

  /// Computes this rank's checksums: the blocks of all files are numbered consecutively, and rank r reads r, r + ranks, …
  void checksum() {
    std::size_t block = 0;
    const auto ranks = static_cast<std::size_t>(ranks_.size());
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      fs::path path = paths_[i];
      path += ".partial";
      const posix::UniqueFd file = file::open_to_read(path);
      for (std::uint64_t b = 0; b < digest_blocks(plans_[i].file_bytes()); ++b, ++block) {
        if (block % ranks != static_cast<std::size_t>(ranks_.rank())) continue;
        mine_.push_back(digest_block(file, path, plans_[i].file_bytes(), b, [&] { rank_.tick(); }));
      }
    }
    mine_.resize((block + ranks - 1) / ranks);
  }

  void gather() {
    std::vector<Digest> all(mine_.size() * static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(ConstBuffer(mine_.data(), mine_.size() * sizeof(Digest), DType::byte),
                      Buffer(all.data(), all.size() * sizeof(Digest), DType::byte));
    std::size_t block = 0;
    for (const safetensors::Plan& plan : plans_) {
      std::vector<Digest> digests;
      for (std::uint64_t b = 0; b < digest_blocks(plan.file_bytes()); ++b, ++block) {
        const auto ranks = static_cast<std::size_t>(ranks_.size());
        digests.push_back(all[block % ranks * mine_.size() + block / ranks]);
      }
      checksums_.push_back(hexadecimal(digest_of_blocks(digests)));
    }
    saved_.folder = dir_ / step_folder(state_.step);
  }

  void publish() {
    Manifest manifest{.state = state_, .files = {}, .checksum = {}};
    const auto list = [&](const std::string& name, const std::string& bytes) {
      manifest.files.push_back({name, bytes.size(), hexadecimal(digest(std::as_bytes(std::span(bytes))))});
    };
    list("config.json", config_json_);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      manifest.files.push_back({std::string(tensors_[i].file), plans_[i].file_bytes(), checksums_[i]});
      files_[i].publish();
      rank_.tick();
    }
    for (const CarriedFile& file : carried()) list(file.name, file.bytes);
    const std::string text = manifest_json(manifest);
    write_text(folder_->path() / kManifestName, text);
    if (options_.before_publish) options_.before_publish();
    folder_->publish();
    saved_.bytes = text.size();
    for (const CheckpointFile& file : manifest.files) saved_.bytes += file.bytes;
  }

  /// Deletes old checkpoints of this run. Newer ones than this step are damaged, or left from before the run went back to an
  /// earlier step; they don't count, and training will replace them.
  void delete_old() {
    if (options_.keep == 0) return;
    std::size_t kept = 0;
    for (const std::uint64_t step : steps_in(dir_)) {
      if (step > state_.step || run_of(dir_ / step_folder(step)) != state_.run || ++kept <= options_.keep) continue;
      try {
        remove_checkpoint(dir_, step);
      } catch (const Error& error) {
        saved_.warnings.emplace_back(error.what());
      }
      rank_.tick();
    }
  }

  Rank& rank_;
  Communicator& ranks_;
  const ParameterStore& store_;
  const ModelConfig& config_;
  const CheckpointState& state_;
  const fs::path& dir_;
  const SaveOptions& options_;
  std::vector<CheckpointTensors> tensors_;
  std::string config_json_;
  std::vector<Parameter> parameters_;

  std::vector<safetensors::Plan> plans_;  // one per file, like tensors_, paths_, files_, checksums_
  std::vector<fs::path> paths_;
  std::unique_ptr<PartialFolder> folder_;  // rank 0 only; outlives files_
  std::vector<safetensors::Writer> files_;
  std::uint64_t unsynced_ = 0;
  std::vector<Digest> mine_;
  std::vector<std::string> checksums_;
  SavedCheckpoint saved_;
};

}  // namespace

void check_save_folder(const fs::path& dir, const ModelConfig& config, DType dtype) {
  // The deepest folder of the path that exists; the first save makes the rest.
  std::error_code error;
  fs::path there = dir.empty() ? fs::path(".") : dir;
  while (!fs::exists(fs::symlink_status(there, error))) {
    there = there.has_parent_path() && there.parent_path() != there ? there.parent_path() : fs::path(".");
  }
  if (!fs::is_directory(there, error)) {
    throw Error(Cause::refused,
                fmt::format("--save {}: {} is no folder; name one, or a new one in it", dir.string(), there.string()));
  }
  if (::access(there.c_str(), W_OK | X_OK) != 0) {
    throw system_error(Cause::refused, fmt::format("--save {}: {} can't be written", dir.string(), there.string()), errno);
  }

  double bytes = 0;
  for (const Parameter& parameter : model_parameters(config)) {
    for (const CheckpointTensors& kind : checkpoint_tensors(dtype)) {
      bytes += static_cast<double>(parameter.elements()) * static_cast<double>(size_of(kind.dtype));
    }
  }
  const fs::space_info space = fs::space(there, error);
  if (!error && static_cast<double>(space.available) < bytes) {
    throw Error(Cause::refused, fmt::format("--save {}: a checkpoint takes {:.1f} MB, the disk has {:.1f} MB left; name a "
                                            "folder on another disk",
                                            dir.string(), bytes / 1e6, static_cast<double>(space.available) / 1e6));
  }
}

SavedCheckpoint save_checkpoint(Rank& rank, Communicator& ranks, const ParameterStore& store, const ModelConfig& config,
                                const CheckpointState& state, const std::filesystem::path& dir, const SaveOptions& options) {
  check_finite(rank, ranks, store,
               [&](const Parameter&) { return fmt::format("{}: step {} isn't saved: ", dir.string(), state.step); });
  Save save(rank, ranks, store, config, state, dir, options);
  try {
    return save.run();
  } catch (...) {
    save.abandon();
    throw;
  }
}

}  // namespace tsprun::detail
