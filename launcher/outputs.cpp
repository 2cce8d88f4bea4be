// Compares the files of all options, and lends stdout to the output called "-".
#include "launcher/outputs.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr std::string_view kStandardOutput = "-";

struct NamedFile {
  std::string option;
  std::filesystem::path path;
  bool in_place;
};

/// Returns the files that were typed for options with these traits.
std::vector<NamedFile> typed(const OptionTable& global, const OptionTable& command, Trait traits) {
  std::vector<NamedFile> files;
  for (const OptionTable* table : {&global, &command}) {
    for (const OptionRow& row : table->rows()) {
      if (!row.is(traits)) continue;
      for (const std::string& value : row.option->results()) {
        const std::size_t name = row.is(Trait::after_colon) ? value.find(':') + 1 : 0;  // of a value without a colon, all
        files.push_back({row.name(), value.substr(name), row.is(Trait::writes_in_place)});
      }
    }
  }
  return files;
}

/// Returns true if both paths are one file; files that don't exist yet are compared by path. Character devices may be written by
/// several.
bool same_file(const std::filesystem::path& one, const std::filesystem::path& other) {
  if (one == kStandardOutput || other == kStandardOutput) return one == other;
  std::error_code error;
  if (std::filesystem::exists(one, error) && std::filesystem::exists(other, error))
    return !std::filesystem::is_character_file(one, error) && std::filesystem::equivalent(one, other, error);
  const std::filesystem::path first = std::filesystem::weakly_canonical(std::filesystem::absolute(one, error), error);
  const std::filesystem::path second = std::filesystem::weakly_canonical(std::filesystem::absolute(other, error), error);
  return first == second;
}

/// Returns true if `file` is one of the files that a model folder consists of.
bool is_part_of(const std::filesystem::path& file, const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error) || !std::filesystem::is_directory(folder, error)) return false;
  const std::filesystem::path absolute = std::filesystem::absolute(file, error);
  const std::string name = absolute.filename().string();
  const bool known = name == "config.json" || name == "manifest.json" || name.ends_with(".safetensors") ||
                     name.ends_with(".safetensors.index.json");
  return known && std::filesystem::equivalent(absolute.parent_path(), folder, error);
}

int lent = -1;

}  // namespace

std::string outputs_trouble(const OptionTable& global, const OptionTable& command) {
  const std::vector<NamedFile> outputs = typed(global, command, Trait::writes | Trait::writes_in_place);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path, in_place] = outputs[i];
    if (path == kStandardOutput && in_place)
      return fmt::format("{} -: all ranks write into it at once, which stdout can't be; name a file", option);
    for (std::size_t j = 0; j < i; ++j) {
      if (!same_file(path, outputs[j].path)) continue;
      return fmt::format("{} {} and {} {}: one would overwrite the other; name two files", outputs[j].option,
                         outputs[j].path.string(), option, path.string());
    }
    for (const NamedFile& input : typed(global, command, Trait::reads)) {
      if (path == kStandardOutput || !(same_file(path, input.path) || is_part_of(path, input.path))) continue;
      return fmt::format("{} {}: the command reads that file ({} {}); name a new one", option, path.string(), input.option,
                         input.path.string());
    }
  }
  return {};
}

bool wants_standard_output(const OptionTable& global, const OptionTable& command) {
  const std::vector<NamedFile> outputs = typed(global, command, Trait::writes | Trait::writes_in_place);
  return std::any_of(outputs.begin(), outputs.end(), [](const NamedFile& file) { return file.path == kStandardOutput; });
}

void lend_standard_output() {
  lent = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (lent < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    throw system_error(Cause::refused, "keeping stdout for the output called -", errno);
}

int lent_standard_output() { return lent; }

std::string write_csv(const std::string& option, const std::string& path, const std::string& table) {
  if (path == kStandardOutput) {
    const int error = posix::write_all(lent, table);
    return error == 0 ? std::string() : fmt::format("{} -: writing the table: {}", option, std::strerror(error));
  }
  std::ofstream file(path, std::ios::binary);
  file << table;
  file.flush();
  return file ? std::string() : fmt::format("{} {}: writing the table failed", option, path);
}

TraceToStandardOutput::TraceToStandardOutput() : file_(::memfd_create("tsprun trace", MFD_CLOEXEC)) {
  if (!file_) throw system_error(Cause::refused, "--trace -: memory for the trace", errno);
  path_ = fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
}

int TraceToStandardOutput::copy() const {
  std::array<char, 1 << 16> buffer;
  off_t at = 0;
  while (true) {
    const ssize_t count = ::pread(file_.get(), buffer.data(), buffer.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return 0;
    if (const int error = posix::write_all(lent, {buffer.data(), static_cast<std::size_t>(count)}); error != 0) return error;
    at += count;
  }
}

}  // namespace tsprun::detail::launcher
