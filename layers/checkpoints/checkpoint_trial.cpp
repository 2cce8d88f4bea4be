// Finds out, before anything is computed, whether all nodes save into the same folder:
//
//   rank 0 creates DIR/tsprun-trial-…, with a byte for every node
//   the first rank of each other node writes its byte into the file, if it sees it
//   rank 0 reads all bytes and deletes the file
#include "layers/checkpoints/checkpoint.h"

#include "layers/io/file.h"
#include "layers/parameters/agreement.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <functional>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

/// Time for which a node may still see an older state of a shared folder.
constexpr std::chrono::seconds kTrialPatience(2);

/// Repeats `attempt` until it succeeds or kTrialPatience has passed. Returns 0 if it succeeded, else the last errno.
int try_for_a_while(Rank& rank, const std::function<bool()>& attempt) {
  const auto until = std::chrono::steady_clock::now() + kTrialPatience;
  for (;;) {
    errno = 0;
    if (attempt()) return 0;
    const int reason = errno;
    if (std::chrono::steady_clock::now() >= until) return reason != 0 ? reason : EIO;
    rank.tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

constexpr std::string_view kShareIt =
    "all nodes must save into one folder; name one on a file system that they share, under the same name on each";

/// Returns the byte that a node writes: any value but the zeros with which the file is created.
std::byte sign_of(std::uint32_t node) { return static_cast<std::byte>(1 + node % 255); }

}  // namespace

void try_shared_folder(Rank& rank, Communicator& ranks, const fs::path& dir) {
  const bootstrap::JobDescription& job = job_of(rank.context());
  const auto nodes = static_cast<std::size_t>(job.nodes);
  if (nodes < 2) return;
  const bool leads = ranks.rank() == 0;
  std::string name(32, ' ');
  fs::path path;
  agree(ranks, [&] {
    if (!leads) return;
    name = new_run_identity();
    path = dir / ("tsprun-trial-" + name);
    const posix::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file) throw system_error(Cause::refused, fmt::format("--save {}: can't be written", dir.string()), errno);
    file::write(file, path, 0, std::vector<std::byte>(nodes));
    file::sync(file, path);
  });
  const std::function<void()> clear_away = [&] {
    if (leads) ::unlink(path.c_str());
  };
  try {
    ranks.broadcast(Buffer(name.data(), name.size(), DType::byte), 0);
    path = dir / ("tsprun-trial-" + name);
    agree(ranks, [&] {
      if (leads || rank.context().local_rank() != 0) return;
      const std::byte sign = sign_of(job.node);
      // NFS clients cache for half a minute that a folder didn't exist, unless one tries to create it.
      const bool made = ::mkdir(dir.c_str(), 0755) == 0;
      if (made) ::rmdir(dir.c_str());
      const int failed = made ? ENOENT : try_for_a_while(rank, [&] {
        const posix::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        return file && ::pwrite(file.get(), &sign, 1, static_cast<off_t>(job.node)) == 1 && ::fsync(file.get()) == 0;
      });
      if (failed == 0) return;
      throw system_error(Cause::refused,
                         fmt::format("--save {}: node {} ({}) can't write the file that node 0 has just made there; {}",
                                     dir.string(), job.node, machine::host_name(), kShareIt),
                         failed);
    });
    agree(ranks, [&] {
      if (!leads) return;
      std::vector<std::byte> found(nodes);
      std::uint32_t missing = 0;
      const int failed = try_for_a_while(rank, [&] {
        const posix::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!file || ::pread(file.get(), found.data(), nodes, 0) != static_cast<ssize_t>(nodes)) return false;
        for (missing = 1; missing < nodes && found[missing] == sign_of(missing);) ++missing;
        return missing == nodes;
      });
      if (failed == 0) return;
      throw Error(Cause::refused, fmt::format("--save {}: what node {} wrote there doesn't reach node 0 ({}); {}", dir.string(),
                                              missing, machine::host_name(), kShareIt));
    });
  } catch (...) {
    clear_away();
    throw;
  }
  clear_away();
}

}  // namespace tsprun::detail
