// Reads reports of `compare`.
#include "launcher/model/measured.h"

#include "launcher/model/layouts.h"
#include "launcher/model/sweep.h"
#include "launcher/refuse.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"

#include <fmt/format.h>

#include <cstdint>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::json;

constexpr std::uintmax_t kLargestReport = std::uintmax_t{64} << 20;
constexpr double kLongestStep = 1e6;
constexpr double kFastestLink = 1e6;
constexpr ModelOptionUse kMeasuredUse{.model_folder = false, .files = false, .seed = false, .ranks = false};

/// An object of the report.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse_one(std::string_view field, std::string_view expected) const {
    refuse_field(object_, where_, "", field, expected);
  }
  std::string text(std::string_view field) const {
    const auto at = object_.find(field);
    if (at == object_.end() || !at->is_string()) refuse_one(field, "a text");
    return *at;
  }
  std::string whole(std::string_view field) const {
    const auto at = object_.find(field);
    if (at == object_.end() || !at->is_number_unsigned()) refuse_one(field, "a whole number");
    return at->dump();
  }
  double number(std::string_view field, double most) const {
    const auto at = object_.find(field);
    if (at == object_.end() || !at->is_number() || !(at->get<double>() > 0 && at->get<double>() <= most)) {
      refuse_one(field, fmt::format("a number above 0, at most {}", most));
    }
    return *at;
  }
  bool has(std::string_view field) const { return object_.contains(field) && !object_[field].is_null(); }

 private:
  const json& object_;
  std::string where_;
};

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
  const Fields all(report, where);
  std::vector<MeasuredPoint> points;
  for (std::size_t i = 0; i < report["compare"].size(); ++i) {
    const json& row = report["compare"][i];
    const Fields fields(row, fmt::format("{}: row {} of \"compare\"", where, i + 1));
    if (!row.is_object()) refuse(fmt::format("{}: row {} of \"compare\": expected an object", where, i + 1));
    if (!fields.has("step_seconds")) continue;
    if (fields.whole("threads") != "1") {
      fields.refuse_one("threads", "1, for a rank has one core: compare with --threads 1");
    }
    MeasuredPoint point;
    point.layout = layout_of_label(fields.text("label"));
    point.model.config = fields.text("config");
    point.model.sequence.text = fields.whole("seq");
    point.model.batch.text = fields.whole("batch");
    point.model.dtype.text = all.text("dtype");
    point.model.recompute.text = all.text("recompute");
    point.forward = row.value("forward_only", false);
    point.seconds = fields.number("step_seconds", kLongestStep);
    if (fields.has("link_gbps")) point.link_gbps = fields.number("link_gbps", kFastestLink);
    validate_model(point.model, {}, kMeasuredUse);
    points.push_back(std::move(point));
  }
  if (points.empty()) refuse(fmt::format("{}: no row has step_seconds: nothing was measured", where));
  return points;
}

}  // namespace tsprun::detail::launcher
