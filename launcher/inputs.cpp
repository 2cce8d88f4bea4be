// Hashes this program and files.
#include "launcher/inputs.h"

#include "launcher/gemm_trial.h"
#include "layers/io/digest.h"
#include "layers/io/digest_files.h"
#include "layers/io/file.h"
#include "transport/posix.h"

#include <fmt/format.h>

namespace tsprun::detail::launcher {

namespace {

std::string short_digest(const Digest& digest) { return hexadecimal(digest).substr(0, 12); }

}  // namespace

Agreement machine_facts(std::optional<kernels::Level> level) {
  const std::filesystem::path self = "/proc/self/exe";
  const posix::UniqueFd program = file::open_to_read(self);
  Agreement facts;
  facts["build"] =
      fmt::format("{} (program {})", TSP_VERSION, short_digest(digest_file(program, self, file::size(program, self))));
  if (level) {
    facts["kernels"] = std::string(kernels::name(*level));
    facts["gemm"] = try_gemm_library(*level);
  }
  return facts;
}

Agreement contents(const std::vector<InputFile>& files, const std::function<void()>& tick) {
  Agreement found;
  if (files.empty()) return found;
  std::vector<std::filesystem::path> paths;
  for (const InputFile& each : files) paths.push_back(each.path);
  const std::vector<Digest> digests = digest_files(paths, tick);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const InputFile& each = files[i];
    std::string& value = found[each.name.empty() ? each.option : fmt::format("{}'s {}", each.option, each.name)];
    value += fmt::format("{}(content {})", value.empty() ? "" : "\n", short_digest(digests[i]));
  }
  return found;
}

}  // namespace tsprun::detail::launcher
