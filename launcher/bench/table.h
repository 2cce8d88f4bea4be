// What a benchmark shows: nccl-tests' columns for people, rows of the JSON report for scripts.
#pragma once

#include "launcher/bench/measure.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tsp::bench {

/// The comment lines above the first row. `who` says what is measured: "tsprun bench: 8 ranks on 2 cores, transport shm".
std::vector<std::string> table_head(std::string_view who);
/// The comment line above the rows of a kind.
std::string kind_line(Kind kind);
/// One row: size count type redop root time p99 algbw busbw #wrong. `count` is nccl-tests': elements of one rank's part where the
/// operation has parts. Times in µs, bandwidths in GB/s (10⁹ bytes). `wrong` may be kUnchecked.
std::string table_row(const Case& which, const Timing& timing, std::uint64_t wrong);

/// One element of the report's "bench". `wrong` is null if nothing was checked. Bandwidths in GB/s.
nlohmann::ordered_json json_row(const Case& which, const Timing& timing, std::uint64_t wrong, std::string_view transport);

}  // namespace tsp::bench
