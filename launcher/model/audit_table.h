// Prints the audit: one line that says whether measurements equal the forecast, and tables that fit a screen.
#pragma once

#include "launcher/model/audit.h"
#include "launcher/model/rank_table.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns whether every figure of every rank equals its forecast to the byte.
bool is_as_forecast(std::span<const RankAudit> audits, Audited kind = Audited::steps);

/// Returns "memory and traffic equal the forecast", or what differs, on which rank, and by how many bytes. Every figure of every
/// rank is compared to the byte.
std::string audit_verdict(std::span<const RankAudit> audits, Audited kind = Audited::steps);

/// Returns the verdict and the tables of memory, traffic, transports and seconds, as lines of at most `columns`
/// characters, and of kTableColumns.
std::vector<std::string> audit_table(std::span<const RankAudit> audits, Audited kind = Audited::steps,
                                     std::size_t columns = kTableColumns);

}  // namespace tsprun::detail::launcher
