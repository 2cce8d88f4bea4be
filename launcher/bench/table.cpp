// Prints nccl-tests' columns, and collects JSON rows.
#include "launcher/bench/table.h"

#include <cstdio>

namespace tsprun::detail::bench {

namespace {

// Formats with snprintf into a string. Widths are constants below, so a row always fits.
template <class... Values>
std::string print(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

/// Columns of nccl-tests' tables, and those of narrow ones that have algbw.
constexpr std::size_t kWholeColumns = 122;
constexpr std::size_t kMiddleColumns = 52;

std::string wrong_text(std::uint64_t wrong) { return wrong == kUnchecked ? "N/A" : std::to_string(wrong); }

/// Returns nccl-tests' name of a type.
const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::f64: return "double";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "half";
    case DType::i8: return "int8";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::boolean: return "bool";
    case DType::byte:
    case DType::u8: return "uint8";
  }
  return "";
}

/// Returns nccl-tests' name of a case's reduction.
std::string reduction_name(const Case& which) {
  if (!reduces(which.kind)) return "none";
  if (which.reduction == Reduction::product) return "prod";
  if (which.reduction == Reduction::average) return "avg";
  return std::string(tsprun::name(which.reduction));
}

std::string half_row(const Case& which, const std::optional<Measurement>& outcome) {
  if (!outcome) return print("  %10s %8s %8s %6s", "N/A", "N/A", "N/A", "N/A");
  const Timing& timing = outcome->timing;
  return print("  %10.2f %8.2f %8.2f %6s", timing.seconds_p50 * 1e6, timing.algbw(which), timing.busbw(which),
               wrong_text(outcome->wrong).c_str());
}

std::string p99_text(const std::optional<Measurement>& outcome) {
  return outcome ? print("%.2f", outcome->timing.seconds_p99 * 1e6) : "N/A";
}

void put_figures(nlohmann::ordered_json& row, const Case& which, const Measurement& outcome) {
  const Timing& timing = outcome.timing;
  row["seconds_p50"] = timing.seconds_p50;
  row["seconds_p99"] = timing.seconds_p99;
  row["seconds_min"] = timing.seconds_min;
  row["algbw_gbps"] = timing.algbw(which);
  row["busbw_gbps"] = timing.busbw(which);
  row["wrong"] = outcome.wrong == kUnchecked ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(outcome.wrong);
  row["iterations"] = timing.iterations;
  row["batch"] = timing.batch;
}

}  // namespace

std::string title_line(std::string_view title) { return "# " + std::string(title); }

std::vector<std::string> table_head(Kind kind) {
  const char* half = "  %10s %8s %8s %6s";
  const auto line = [&](const char* first, const char* second, const char* third, const char* fourth, const char* fifth,
                        const std::string& rest) {
    return print("# %10s %12s %8s %6s %6s", first, second, third, fourth, fifth) + rest;
  };
  const std::string names = print(half, "time", "algbw", "busbw", "#wrong");
  const std::string units = print(half, "(us)", "(GB/s)", "(GB/s)", "");
  return {"# " + std::string(name(kind)),
          line("", "", "", "", "", print("  %35s  %35s", "out-of-place           ", "in-place             ")),
          line("size", "count", "type", "redop", "root", names + names), line("(B)", "(elements)", "", "", "", units + units)};
}

std::string table_row(const Case& which, const Measurements& outcomes) {
  return print("  %10llu %12zu %8s %6s %6d", static_cast<unsigned long long>(which.bytes), which.count(), type_name(which.dtype),
               reduction_name(which).c_str(), has_root(which.kind) ? 0 : -1) +
         half_row(which, outcomes.out_of_place) + half_row(which, outcomes.in_place);
}

std::vector<std::string> narrow_head(const Case& which, std::size_t columns) {
  const std::string of = "# " + std::string(name(which.kind)) + ", " + type_name(which.dtype) + ", " + reduction_name(which);
  if (columns < kMiddleColumns)
    return {of, print("# %7s %3s %10s %8s %6s", "size", "", "time", "busbw", "#wrong"),
            print("# %7s %3s %10s %8s", "(B)", "", "(us)", "(GB/s)")};
  return {of, print("# %8s %5s %10s %8s %8s %6s", "size", "", "time", "algbw", "busbw", "#wrong"),
          print("# %8s %5s %10s %8s %8s", "(B)", "", "(us)", "(GB/s)", "(GB/s)")};
}

std::vector<std::string> narrow_rows(const Case& which, const Measurements& outcomes, std::size_t columns) {
  std::vector<std::string> lines;
  for (const auto& [place, outcome] : {std::pair("out", &outcomes.out_of_place), std::pair("in", &outcomes.in_place)}) {
    if (!*outcome) continue;
    const Timing& timing = (*outcome)->timing;
    const auto bytes = static_cast<unsigned long long>(which.bytes);
    const std::string wrong = wrong_text((*outcome)->wrong);
    lines.push_back(columns < kMiddleColumns ? print("%9llu %3s %10.2f %8.2f %6s", bytes, place, timing.seconds_p50 * 1e6,
                                                     timing.busbw(which), wrong.c_str())
                                             : print("%10llu %5s %10.2f %8.2f %8.2f %6s", bytes, place, timing.seconds_p50 * 1e6,
                                                     timing.algbw(which), timing.busbw(which), wrong.c_str()));
  }
  return lines;
}

std::vector<std::string> table_foot(std::span<const Case> cases, std::span<const Measurements> outcomes) {
  std::uint64_t wrong = 0;
  bool checked = true;
  double busbw = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const std::optional<Measurement>& each : {outcomes[i].out_of_place, outcomes[i].in_place}) {
      if (!each) continue;
      busbw += each->timing.busbw(cases[i]);
      ++count;
      if (each->wrong == kUnchecked) checked = false;
      else wrong += each->wrong;
    }
  }
  std::vector<std::string> lines = {
      print("# %-20s : %llu %s", "Out of bounds values", static_cast<unsigned long long>(wrong),
            wrong != 0 ? "FAILED"
            : checked  ? "OK"
                       : "OK (not checked)"),
      print("# %-20s : %g", "Avg bus bandwidth", count == 0 ? 0 : busbw / static_cast<double>(count)), "#"};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    // These lines avoid the words of the heads: some readers look for the last line that has them.
    lines.push_back(print("# p99 of %10llu B: %10s us, %10s us in place", static_cast<unsigned long long>(cases[i].bytes),
                          p99_text(outcomes[i].out_of_place).c_str(), p99_text(outcomes[i].in_place).c_str()));
  }
  lines.emplace_back("#");
  return lines;
}

nlohmann::ordered_json json_row(const Case& which, const Measurements& outcomes, std::string_view transport) {
  nlohmann::ordered_json row;
  row["op"] = name(which.kind);
  row["ranks"] = which.ranks;
  row["bytes"] = which.bytes;
  row["dtype"] = name(which.dtype);
  row["reduction"] = reduces(which.kind) ? nlohmann::ordered_json(tsprun::name(which.reduction)) : nullptr;
  row["transport"] = transport;
  const bool usually_in_place = which.kind == Kind::broadcast;
  if (const std::optional<Measurement>& usual = usually_in_place ? outcomes.in_place : outcomes.out_of_place)
    put_figures(row, which, *usual);
  for (const auto& [key, outcome] :
       {std::pair("out_of_place", &outcomes.out_of_place), std::pair("in_place", &outcomes.in_place)}) {
    row[key] = nullptr;
    if (!*outcome) continue;
    nlohmann::ordered_json figures;
    put_figures(figures, which, **outcome);
    row[key] = std::move(figures);
  }
  return row;
}

void ResultTable::add(const Case& which, const Measurements& outcomes, std::string_view transport) {
  if (cases_.empty() || cases_.front().kind != which.kind) {
    finish();
    for (const std::string& line : columns_ < kWholeColumns ? narrow_head(which, columns_) : table_head(which.kind)) print_(line);
  }
  cases_.push_back(which);
  outcomes_.push_back(outcomes);
  if (columns_ >= kWholeColumns) print_(table_row(which, outcomes));
  else
    for (const std::string& line : narrow_rows(which, outcomes, columns_)) print_(line);
  rows_.push_back(json_row(which, outcomes, transport));
}

void ResultTable::add(const Case& which, const Timing& timing, std::uint64_t wrong, std::string_view transport) {
  const Measurement outcome{timing, wrong};
  Measurements outcomes;
  (which.kind == Kind::broadcast ? outcomes.in_place : outcomes.out_of_place) = outcome;
  add(which, outcomes, transport);
}

void ResultTable::finish() {
  if (cases_.empty()) return;
  for (const std::string& line : table_foot(cases_, outcomes_)) print_(line);
  cases_.clear();
  outcomes_.clear();
}

}  // namespace tsprun::detail::bench
