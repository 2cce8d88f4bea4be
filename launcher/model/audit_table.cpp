// Lists differences between measurement and forecast, and prints memory, traffic and time by rank.
#include "launcher/model/audit_table.h"

#include "launcher/model/rank_table.h"
#include "launcher/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr std::string_view kMarks = "\"=\": to the byte as forecast, else by how much it differs, in bytes";

/// A part of a run whose traffic has a table of its own.
struct Part {
  std::string_view title;
  std::string_view adjective;  ///< for the verdict: "forward"
  TrafficCounters RankAudit::*measured;
  theory::PurposeBytes (*predicted)(const theory::RankCounts& forecast);
};

theory::PurposeBytes in_forward(const theory::RankCounts& forecast) { return forecast.traffic.forward; }
theory::PurposeBytes in_backward(const theory::RankCounts& forecast) { return forecast.traffic.backward; }
theory::PurposeBytes for_tokens(const theory::RankCounts& forecast) { return forecast.tokens; }

std::vector<Part> parts_of(std::span<const RankAudit> audits, Audited kind) {
  if (kind == Audited::text) {
    return {{"for the prompt", "prompt's", &RankAudit::forward, in_forward},
            {"for all tokens put in after it", "later tokens'", &RankAudit::tokens, for_tokens}};
  }
  std::vector<Part> parts = {{"in the forward pass of one step", "forward", &RankAudit::forward, in_forward}};
  const auto has_gradients = [](const RankAudit& each) { return each.forecast.memory[Category::gradients] > 0; };
  if (std::ranges::any_of(audits, has_gradients))
    parts.push_back({"in the backward pass of one step", "backward", &RankAudit::backward, in_backward});
  return parts;
}

/// Returns the purposes for which anything was measured or predicted in any of the parts, so that their tables have the same
/// columns.
std::vector<Purpose> purposes_in_use(std::span<const RankAudit> audits, std::span<const Part> parts) {
  std::vector<Purpose> purposes;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    const bool used = std::ranges::any_of(parts, [&](const Part& part) {
      return std::ranges::any_of(audits, [&](const RankAudit& audit) {
        return (audit.*part.measured).received[i] > 0 || part.predicted(audit.forecast)[purpose] > 0;
      });
    });
    if (used) purposes.push_back(purpose);
  }
  return purposes;
}

/// A figure that differs from its forecast, for the verdict.
struct Difference {
  std::string where;  ///< "rank 3's activations"
  std::uint64_t measured;
  std::uint64_t predicted;
};

std::vector<Difference> memory_differences(std::span<const RankAudit> audits) {
  std::vector<Difference> found;
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const CategoryBytes& measured = audits[rank].memory_peak;
    const CategoryBytes& predicted = audits[rank].forecast.memory;
    const auto compare = [&](std::string_view what, std::uint64_t here, std::uint64_t there) {
      if (here != there) found.push_back({fmt::format("rank {}'s {}", rank, what), here, there});
    };
    for (std::size_t i = 0; i < kCategories; ++i) compare(name(static_cast<Category>(i)), measured.of[i], predicted.of[i]);
    compare("total", measured.total, predicted.total);
  }
  return found;
}

std::vector<Difference> traffic_differences(std::span<const RankAudit> audits, std::span<const Part> parts) {
  std::vector<Difference> found;
  for (const Part& part : parts) {
    for (const Purpose purpose : purposes_in_use(audits, parts)) {
      for (std::size_t rank = 0; rank < audits.size(); ++rank) {
        const std::uint64_t measured = (audits[rank].*part.measured).received[static_cast<int>(purpose)];
        const std::uint64_t predicted = part.predicted(audits[rank].forecast)[purpose];
        if (predicted != measured)
          found.push_back({fmt::format("rank {}'s {} {}", rank, part.adjective, name(purpose)), measured, predicted});
      }
    }
  }
  return found;
}

/// Returns "rank 3's activations by +12 bytes, and 2 figures more".
std::string told(const std::vector<Difference>& found) {
  const Difference& first = found.front();
  const auto by = static_cast<std::int64_t>(first.measured - first.predicted);
  std::string text = fmt::format("{} by {:+} bytes", first.where, by);
  if (found.size() > 1) text += fmt::format(", and {} figure{} more", found.size() - 1, found.size() == 2 ? "" : "s");
  return text;
}

void memory_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, std::size_t columns) {
  RankTable table{.heads = {}, .ranks = {}};
  for (std::size_t i = 0; i < kCategories; ++i) table.heads.emplace_back(name(static_cast<Category>(i)));
  table.heads.emplace_back("total");
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const CategoryBytes& measured = audits[rank].memory_peak;
    const CategoryBytes& predicted = audits[rank].forecast.memory;
    std::vector<RankCell>& cells = table.ranks.emplace_back();
    for (std::size_t i = 0; i < kCategories; ++i) cells.push_back(bytes_cell(measured.of[i], predicted.of[i]));
    cells.push_back(bytes_cell(measured.total, predicted.total));
  }
  std::ranges::move(wrapped(fmt::format("memory, peak MiB ({})", kMarks), columns, "  "), std::back_inserter(lines));
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
}

/// Returns a row of received bytes with their total, beside the forecast.
std::vector<RankCell> traffic_cells(const theory::PurposeBytes& measured, const theory::PurposeBytes& predicted,
                                    std::span<const Purpose> purposes) {
  std::vector<RankCell> cells;
  for (const Purpose purpose : purposes) cells.push_back(bytes_cell(measured[purpose], predicted[purpose]));
  cells.push_back(bytes_cell(measured.total(), predicted.total()));
  return cells;
}

void traffic_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, const Part& part,
                   std::span<const Purpose> purposes, std::size_t columns) {
  RankTable table{.heads = {}, .ranks = {}};
  for (const Purpose purpose : purposes) table.heads.emplace_back(name(purpose));
  table.heads.emplace_back("total");
  theory::PurposeBytes sum;
  for (const RankAudit& audit : audits) {
    const theory::PurposeBytes measured = theory::PurposeBytes::received(audit.*part.measured);
    sum += measured;
    table.ranks.push_back(traffic_cells(measured, part.predicted(audit.forecast), purposes));
  }
  table.sum = traffic_cells(sum, part.predicted(forecast_of_all(audits)), purposes);
  lines.push_back(fmt::format("received {}, MiB", part.title));
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
}

/// Returns the transports that carried something.
std::vector<std::size_t> links_in_use(std::span<const RankAudit> audits) {
  std::vector<std::size_t> used;
  for (std::size_t link = 0; link < kFactories.size(); ++link) {
    const auto carried = [&](const RankAudit& each) { return each.links[link].sent + each.links[link].received > 0; };
    if (std::ranges::any_of(audits, carried)) used.push_back(link);
  }
  return used;
}

/// Prints the bytes by transport, if there is more than shared memory.
void links_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, std::size_t columns) {
  const std::vector<std::size_t> used = links_in_use(audits);
  if (used.empty() || (used.size() == 1 && used.front() == 0)) return;
  RankTable table{.heads = {}, .ranks = {}};
  for (const std::size_t link : used) {
    table.heads.push_back(fmt::format("{} sent", kFactories[link]->name));
    table.heads.push_back(fmt::format("{} received", kFactories[link]->name));
  }
  for (const RankAudit& audit : audits) {
    std::vector<RankCell>& cells = table.ranks.emplace_back();
    for (const std::size_t link : used) {
      cells.push_back(bytes_cell(audit.links[link].sent, std::nullopt));
      cells.push_back(bytes_cell(audit.links[link].received, std::nullopt));
    }
  }
  lines.emplace_back("payload by transport in the whole run, MiB");
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
}

void time_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, std::size_t columns) {
  RankTable table{.heads = {"total", "compute", "communication", "exposed of it"}, .ranks = {}};
  for (const RankAudit& audit : audits) {
    std::vector<RankCell>& cells = table.ranks.emplace_back();
    for (const double seconds :
         {audit.seconds.total, audit.seconds.compute, audit.seconds.communication, audit.seconds.exposed_communication})
      cells.push_back({.value = seconds, .number = fmt::format("{:.3f}", seconds)});
  }
  lines.emplace_back("seconds of all of it");
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
}

}  // namespace

bool is_as_forecast(std::span<const RankAudit> audits, Audited kind) {
  return memory_differences(audits).empty() && traffic_differences(audits, parts_of(audits, kind)).empty();
}

std::string audit_verdict(std::span<const RankAudit> audits, Audited kind) {
  const std::vector<Difference> memory = memory_differences(audits);
  const std::vector<Difference> traffic = traffic_differences(audits, parts_of(audits, kind));
  if (memory.empty() && traffic.empty()) return "memory and traffic equal the forecast";
  if (traffic.empty()) return fmt::format("memory differs from the forecast: {}; traffic equals it", told(memory));
  if (memory.empty()) return fmt::format("traffic differs from the forecast: {}; memory equals it", told(traffic));
  return fmt::format("memory and traffic differ from the forecast: {}; {}", told(memory), told(traffic));
}

std::vector<std::string> audit_table(std::span<const RankAudit> audits, Audited kind, std::size_t columns) {
  columns = std::min(columns, kTableColumns);
  std::vector<std::string> lines = wrapped("audit: " + audit_verdict(audits, kind), columns, "  ");
  lines.insert(lines.begin(), "");
  memory_table(lines, audits, columns);
  const std::vector<Part> parts = parts_of(audits, kind);
  const std::vector<Purpose> purposes = purposes_in_use(audits, parts);
  // A lone rank receives nothing.
  for (const Part& part : purposes.empty() ? std::vector<Part>() : parts) traffic_table(lines, audits, part, purposes, columns);
  links_table(lines, audits, columns);
  time_table(lines, audits, columns);
  return lines;
}

}  // namespace tsprun::detail::launcher
