// Reads reports of `compare`.
#include "launcher/model/measured.h"

#include "launcher/model/layouts.h"
#include "launcher/model/sweep.h"
#include "launcher/refuse.h"
#include "layers/io/file.h"
#include "layers/io/json_object.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::json;

constexpr std::uintmax_t kLargestReport = std::uintmax_t{64} << 20;
constexpr double kShortestStep = 1e-9;
constexpr double kLongestStep = 1e6;
constexpr double kSlowestLink = 1e-9;  // in 10⁹ bytes a second
constexpr double kFastestLink = 1e6;
constexpr int kMost = 1 << 30;
constexpr ModelOptionUse kMeasuredUse{
    .model_folder = false, .files = false, .seed = false, .micro_batches = true, .ranks = false};

/// Returns the layout of a row's label: "tp=2 (sequence)".
Layout layout_of_label(const std::string& label) {
  GlobalOptions global;
  const std::size_t space = label.find(" (");
  take({.layout = label.substr(0, space), .config = {}, .sequence = {}, .batch = {}}, global);
  const std::string variants = space == std::string::npos ? "" : label.substr(space);
  for (const AxisRow& row : kAxes) {
    for (std::size_t i = 1; i < row.variants.size(); ++i) {
      if (variants.find(row.variants[i].name) != std::string::npos) global.variant(row.kind).value = i;
    }
  }
  return layout_of(global);
}

}  // namespace

std::vector<MeasuredPoint> read_measured(const std::string& option, const std::string& file) {
  const std::string where = fmt::format("{} {}", option, file);
  const json report = parse_json(file::read_text(file, kLargestReport, "a report"), where);
  const auto command = report.is_object() ? report.find("command") : report.end();
  if (command == report.end() || *command != "compare" || !report.contains("compare") || !report["compare"].is_array()) {
    refuse(fmt::format("{}: not a report of compare, but {}; tsprun compare --json FILE writes one", where,
                       command == report.end() ? "without field \"command\"" : "of " + shown_value(*command)));
  }
  JsonObject all(report, where);
  if (all.integer("nodes", 1, kMost, 1) != 1)
    all.refuse("nodes", "1, for what is played here is one node's cores: compare without --nodes");
  std::vector<MeasuredPoint> points;
  for (std::size_t i = 0; i < report["compare"].size(); ++i) {
    JsonObject row = all.entry("compare", i);
    if (row.find("step_seconds") == nullptr) continue;
    if (row.integer("threads", 1, kMost) != 1) row.refuse("threads", "1, for a rank has one core: compare with --threads 1");
    // Reports of earlier versions don't say it.
    for (std::size_t way = 0; row.find("transports") != nullptr && way < row.entries("transports", 0, kMost); ++way) {
      JsonObject by = row.entry("transports", way);
      if (by.text("kind") != "shm")
        by.refuse("kind", "\"shm\", for what is played here is shared memory: compare without --intra");
    }
    MeasuredPoint point;
    point.layout = layout_of_label(row.text("label"));
    point.model.config = row.text("config");
    point.model.sequence.text = std::to_string(row.integer("seq", 1, kMost));
    point.model.batch.text = std::to_string(row.integer("batch", 1, kMost));
    point.model.micro_batches.text = std::to_string(row.integer("micro_batches", 1, kMost, 1));
    point.model.dtype.text = all.text("dtype");
    point.model.recompute.text = all.text("recompute");
    point.forward = row.flag("forward_only", false);
    point.seconds = row.number("step_seconds", kShortestStep, kLongestStep);
    if (row.find("link_gbps") != nullptr) point.link_gbps = row.number("link_gbps", kSlowestLink, kFastestLink);
    validate_model(point.model, {}, kMeasuredUse);
    points.push_back(std::move(point));
  }
  if (points.empty()) refuse(fmt::format("{}: no row has step_seconds: nothing was measured", where));
  return points;
}

}  // namespace tsprun::detail::launcher
