// Runs tsprun from its command line to an exit code: parses, validates, runs, reports.
#pragma once

namespace tsprun::detail::launcher {

/// Runs tsprun with main()'s arguments and returns the exit code. Never throws.
int tsprun(int argc, const char* const* argv);

}  // namespace tsprun::detail::launcher
