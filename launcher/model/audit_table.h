// The audit in print: one line that says whether measurements equal the forecast, and tables that fit a screen.
#pragma once

#include "launcher/model/audit.h"

#include <span>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// "memory and traffic equal the forecast", or what differs, where, and by how much. To the byte, of every rank and figure.
std::string audit_verdict(std::span<const RankAudit> audits, const Forecast& forecast);

/// The verdict and the tables of memory, traffic, transports and seconds, a line each.
std::vector<std::string> audit_table(std::span<const RankAudit> audits, const Forecast& forecast);

}  // namespace tsprun::launcher
