// The points of a `compare` report, as settings to play or to time: `simulate --against` and `calibrate --like`.
#pragma once

#include "launcher/model/model_options.h"
#include "layers/layout/layout.h"

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// A measured point.
struct MeasuredPoint {
  ModelCommandOptions model;
  Layout layout;
  bool forward = false;
  double seconds = 0;    ///< of the median step
  double link_gbps = 0;  ///< speed that --link-gbps gave the links; 0: as fast as they are
};

/// Reads the points that were measured, in order, and leaves out those that weren't: a layout that can't run has none. Throws
/// Error(refused), naming the option, the file, the field and what was expected, for anything but a report of `compare`.
std::vector<MeasuredPoint> read_measured(const std::string& option, const std::string& file);

}  // namespace tsprun::detail::launcher
