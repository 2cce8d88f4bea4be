// Loads the job's secret from --secret-file, TSP_SECRET, or a file of the user's that is made on first use. The text is as
// sensitive as the secret, so it never lies where a core dump would hold it (transport/bootstrap/secret.h).
#pragma once

#include "transport/bootstrap/secret.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::launcher {

/// A secret that came as a text.
struct GivenSecret {
  bootstrap::Secret secret;
  std::size_t bytes = 0;  ///< length of the text; 0: none was given
};

/// Takes TSP_SECRET out of the environment. The value is overwritten where it lies, on the stack that the process began with:
/// that is what /proc/PID/environ shows and core dumps hold. Neither ranks nor programs under `run` inherit it. Call it once,
/// first.
GivenSecret take_secret_from_environment();

/// Returns the job's secret: from --secret-file (`file`), else TSP_SECRET, else ~/.config/tsprun/secret, which is made on first
/// use. Throws Error(refused) naming the source and what is wrong with it, such as fewer than 16 bytes, which an eavesdropper
/// could guess, or a FIFO that nobody has written by the deadline.
bootstrap::Secret load_secret(const std::string& file, const GivenSecret& of_environment, std::uint64_t timeout_ns);

}  // namespace tsprun::detail::launcher
