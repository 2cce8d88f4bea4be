#include "launcher/model/output_file.h"

#include "launcher/model/model_options.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace tsp::launcher {

OutputFile::OutputFile(Session& session, const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors)
    : session_(session), plan_(tensors) {
  if (session.speaks()) writer_.emplace(safetensors::Writer::create(path, plan_));
  session.world().barrier();
  if (!session.speaks()) writer_.emplace(safetensors::Writer::join(path, plan_));
}

void OutputFile::publish() {
  session_.world().barrier();
  if (session_.speaks()) writer_->publish();
}

void check_output(const std::string& option, const std::string& path, double bytes) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error) || std::filesystem::is_directory(path, error)) {
    throw Error(Cause::refused, fmt::format("{} {}: expected a file in a folder that exists", option, path));
  }
  const auto space = std::filesystem::space(folder, error);
  if (!error && bytes > static_cast<double>(space.available)) {
    throw Error(Cause::refused, fmt::format("{} {}: {:.0f} MiB are needed, {} MiB are free in {}", option, path,
                                            bytes / (1 << 20), space.available >> 20, folder.string()));
  }
  check_writable(option, path + ".partial");
  discard_output(path);
}

void discard_output(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove(path + ".partial", ignored);
}

}  // namespace tsp::launcher
