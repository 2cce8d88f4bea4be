// Takes the lease, tells a run's own checkpoints from older ones, and prints the command that resumes it.
#include "launcher/commands/run_folder.h"

#include "layers/checkpoints/checkpoint_folder.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

bool leads(const GlobalOptions& global) { return ranks_here(global).first == 0; }

std::string for_shell(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_./=,:+@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

RunFolder::RunFolder(std::filesystem::path dir, const std::optional<FoundCheckpoint>& resumed)
    : dir_(std::move(dir)), before_(checkpoints_in(dir_)) {
  std::error_code error;
  goes_on_here_ = resumed && std::filesystem::equivalent(resumed->folder / "..", dir_, error);
  run_ = goes_on_here_ && !resumed->state.run.empty() ? resumed->state.run : new_run_identity();
}

std::optional<std::uint64_t> RunFolder::others() const {
  if (before_.empty() || goes_on_here_) return std::nullopt;
  return before_.rbegin()->first;
}

void RunFolder::remove_others() const {
  if (goes_on_here_) return;
  for (const auto& [step, mark] : before_) {
    if (is_marked(before_, dir_, step)) remove_checkpoint(dir_, step);
  }
}

void RunFolder::lease(const GlobalOptions& global) {
  if (!leads(global) || lease_) return;
  lease_.emplace(dir_, run_, [](const std::string& line) { spdlog::warn("{}", line); });
  if (checkpoints_in(dir_) != before_) {
    throw Error(Cause::refused, fmt::format("--save {}: another run has saved there since this one began to look; start it again",
                                            dir_.string()));
  }
  try {
    remove_leftovers(dir_);
  } catch (const Error& error) {
    spdlog::warn("{}", error.what());
  }
}

CheckpointSearch RunFolder::search(bool verify_bytes) const {
  std::error_code error;
  if (!std::filesystem::is_directory(dir_, error)) return {};
  std::optional<std::string> run = run_;
  if (!lease_) {
    const std::optional<LeaseRecord> record = read_lease(dir_);
    run = record ? record->run : std::string();
  }
  return search_checkpoints(dir_, {.passed_over = before_, .run = run, .verify_bytes = verify_bytes});
}

CheckpointSearch RunFolder::own_checkpoints() const {
  if (lease_) check_lease(dir_, lease_->token());
  return search(true);
}

std::optional<FoundCheckpoint> RunFolder::survivor() const {
  try {
    return search(false).found;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string resume_command(const std::vector<std::string>& words, const std::string& dir) {
  std::string command = "tsprun";
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--model" || word == "--resume") {
      ++i;
      continue;
    }
    if (word.starts_with("--model=") || word.starts_with("--resume=")) continue;
    if (word == "--no-checksum" || word == "--overwrite") continue;
    command += " " + for_shell(word);
  }
  return fmt::format("{} --resume {}", command, for_shell(dir));
}

}  // namespace tsprun::detail::launcher
