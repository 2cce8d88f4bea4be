// What mpi_bench, gloo_bench and floor share: the command line of `tsprun bench`, memory, the loop over all cases, and their
// JSON, {"bench": [rows]} as in tsprun's report.
#pragma once

#include "launcher/bench/table.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bench {

/// Page-aligned, as tsprun's heap blocks are.
class PlainMemory {
 public:
  explicit PlainMemory(std::uint64_t bytes) : bytes_((bytes + 4095) / 4096 * 4096 + 4096) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_)));
    if (!memory_) throw std::bad_alloc();
  }
  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// A line on stdout, at once.
inline void print_now(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct Arguments {
  std::string ops = "all";
  std::vector<std::uint64_t> sizes = {8, 1 << 10, 64 << 10, 1 << 20, 64 << 20};
  std::string dtype = "f32";
  Pace pace;
  bool check = true;
  std::string json;

  void add_to(CLI::App& app) {
    app.add_option("op", ops, "operations separated by commas, or all")->capture_default_str();
    app.add_option("--sizes", sizes, "bytes of the whole buffer, separated by commas: 8,1K,64M")
        ->delimiter(',')
        ->transform(CLI::AsSizeValue(false))
        ->default_str("8,1K,64K,1M,64M");
    app.add_option("--dtype", dtype, "element type")->check(CLI::IsMember({"f32", "f64"}))->capture_default_str();
    app.add_option("--iters", pace.iterations, "iterations a row; 0: as many as the times below ask for")->capture_default_str();
    app.add_option("--min-time", pace.min_seconds, "seconds a row, at least")->capture_default_str();
    app.add_option("--max-time", pace.max_seconds, "seconds a row, at most")->capture_default_str();
    app.add_flag("--check,!--no-check", check, "compare every element in a pass of its own");
    app.add_option("--json", json, "write the rows to this file");
  }

  /// Throws std::invalid_argument naming an operation that isn't known.
  std::vector<Case> cases(int ranks) const {
    std::vector<Kind> kinds;
    if (ops == "all") {
      kinds.assign(all_kinds().begin(), all_kinds().end());
    } else {
      for (const std::string& op : split_list(ops)) {
        const auto kind = kind_from_name(op);
        if (!kind) throw std::invalid_argument("op " + op + ": unknown; see --help of tsprun bench");
        kinds.push_back(*kind);
      }
    }
    return make_cases(kinds, sizes, dtype == "f64" ? DType::f64 : DType::f32, ranks);
  }

  /// Throws std::runtime_error if the file can't be written.
  void write(const nlohmann::ordered_json& rows) const {
    if (json.empty()) return;
    std::ofstream file(json);
    file << nlohmann::ordered_json{{"bench", rows}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("--json " + json + ": can't be written");
  }
};

/// Measures all cases, each checked before if that is asked for; rank 0 prints them under `title` and writes the file.
inline void measure_cases(Subject& subject, const Arguments& arguments, std::span<const Case> cases, const std::string& title,
                          std::string_view library) {
  const bool speaks = subject.rank() == 0;
  ResultTable table(print_now);
  if (speaks) print_now(title_line(title));
  for (const Case& which : cases) {
    const std::uint64_t wrong = arguments.check ? check(subject, which, 1) : kUnchecked;
    const Timing timing = measure(subject, which, arguments.pace);
    if (speaks) table.add(which, timing, wrong, library);
  }
  if (!speaks) return;
  table.finish();
  arguments.write(table.rows());
}

}  // namespace tsprun::detail::bench
