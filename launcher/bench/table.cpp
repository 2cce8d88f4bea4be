// The benchmark's table and JSON rows: see table.h.
#include "launcher/bench/table.h"

#include <cstdio>

namespace tsp::bench {

namespace {

// snprintf into a string: widths are constants below, so a row always fits.
template <class... Values>
std::string print(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

std::string wrong_text(std::uint64_t wrong) { return wrong == kUnchecked ? "N/A" : std::to_string(wrong); }

}  // namespace

std::vector<std::string> table_head(std::string_view who) {
  return {
      "# " + std::string(who),
      print("# %10s %12s %6s %6s %5s %12s %12s %8s %8s %7s", "size", "count", "type", "redop", "root", "time", "p99", "algbw",
            "busbw", "#wrong"),
      print("# %10s %12s %6s %6s %5s %12s %12s %8s %8s", "(B)", "(elements)", "", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)")};
}

std::string kind_line(Kind kind) { return "# " + std::string(name(kind)); }

std::string table_row(const Case& which, const Timing& timing, std::uint64_t wrong) {
  const std::string type(name(which.dtype));
  const std::string wrongs = wrong_text(wrong);
  return print("  %10llu %12zu %6s %6s %5d %12.2f %12.2f %8.2f %8.2f %7s", static_cast<unsigned long long>(which.bytes),
               which.count(), type.c_str(), reduces(which.kind) ? "sum" : "none", has_root(which.kind) ? 0 : -1,
               timing.seconds_p50 * 1e6, timing.seconds_p99 * 1e6, timing.algbw(which), timing.busbw(which), wrongs.c_str());
}

nlohmann::ordered_json json_row(const Case& which, const Timing& timing, std::uint64_t wrong, std::string_view transport) {
  nlohmann::ordered_json row;
  row["op"] = name(which.kind);
  row["ranks"] = which.ranks;
  row["bytes"] = which.bytes;
  row["dtype"] = name(which.dtype);
  row["transport"] = transport;
  row["seconds_p50"] = timing.seconds_p50;
  row["seconds_p99"] = timing.seconds_p99;
  row["seconds_min"] = timing.seconds_min;
  row["algbw_gbps"] = timing.algbw(which);
  row["busbw_gbps"] = timing.busbw(which);
  row["wrong"] = wrong == kUnchecked ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(wrong);
  row["iterations"] = timing.iterations;
  row["batch"] = timing.batch;
  return row;
}

}  // namespace tsp::bench
