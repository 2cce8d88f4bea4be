// From the command line to an exit code: parse, validate, run, report.
#pragma once

namespace tsprun::launcher {

/// What main() does. Never throws.
int tsprun(int argc, const char* const* argv);

}  // namespace tsprun::launcher
