// Checks the path of an output file before ranks start, and writes it with safetensors::Writer.
#include "launcher/model/output_file.h"

#include "launcher/model/model_options.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tsprun::detail::launcher {

OutputFile::OutputFile(Session& session, const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors,
                       int unnamed)
    : session_(session), plan_(tensors) {
  const auto inherited = [unnamed] { return posix::UniqueFd(unnamed < 0 ? -1 : ::fcntl(unnamed, F_DUPFD_CLOEXEC, 0)); };
  if (session.speaks())
    writer_.emplace(safetensors::Writer::create(
        path, plan_, [&] { session.rank().tick(); }, inherited()));
  session.world().barrier();
  if (!session.speaks()) writer_.emplace(safetensors::Writer::join(path, plan_, inherited()));
}

posix::UniqueFd unnamed_output(const GlobalOptions& global, const std::string& path) {
  if (path.empty() || global.several_machines) return {};
  return safetensors::unnamed_file(path);
}

void OutputFile::publish() {
  session_.world().barrier();
  if (session_.speaks()) writer_->publish();
}

namespace {

/// Refuses to replace what is no regular file, or a file that the command reads.
void check_replaced(const std::string& option, const std::string& path, std::span<const std::filesystem::path> sources) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw Error(Cause::refused,
                fmt::format("{} {}: is no regular file, and a file would take its place; name a new file", option, path));
  }
  const auto refuse_if_same = [&](const std::filesystem::path& source) {
    if (!std::filesystem::equivalent(path, source, error)) return;
    throw Error(Cause::refused,
                fmt::format("{} {}: the command reads that file ({}); name a new one", option, path, source.string()));
  };
  for (const std::filesystem::path& source : sources) {
    if (!std::filesystem::is_directory(source, error)) {
      refuse_if_same(source);
      continue;
    }
    for (auto at = std::filesystem::directory_iterator(source, error); at != std::filesystem::directory_iterator();
         at.increment(error)) {
      refuse_if_same(at->path());
    }
  }
}

}  // namespace

std::string check_output(const std::string& option, const std::string& typed, double bytes,
                         std::span<const std::filesystem::path> sources) {
  std::error_code error;
  std::string path = typed;
  if (std::filesystem::is_symlink(typed, error) && std::filesystem::exists(typed, error)) {
    const std::filesystem::path target = std::filesystem::canonical(typed, error);
    if (!error) path = target.string();
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  if (!std::filesystem::is_directory(folder, error) || std::filesystem::is_directory(path, error)) {
    throw Error(Cause::refused, fmt::format("{} {}: expected a file in a folder that exists", option, path));
  }
  refuse_fifo(option, path);
  if (std::filesystem::exists(path, error)) check_replaced(option, path, sources);
  const auto space = std::filesystem::space(folder, error);
  if (!error && bytes > static_cast<double>(space.available)) {
    throw Error(Cause::refused, fmt::format("{} {}: {:.0f} MiB are needed, {} MiB are free in {}", option, path,
                                            bytes / (1 << 20), space.available >> 20, folder.string()));
  }
  check_writable(option, path + ".partial");
  if (!safetensors::discard_unfinished(path))
    throw Error(Cause::refused, fmt::format("{} {}: another run writes it ({}.partial); name another file", option, path, path));
  return path;
}

}  // namespace tsprun::detail::launcher
