// The audit in print: what its first line says, and that it fits a screen.
#include "launcher/model/audit_table.h"

#include "launcher/model/rank_table.h"
#include "launcher/ranges.h"
#include "launcher/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::audit_table_test {
namespace {

constexpr int kEmbedding = static_cast<int>(Purpose::embedding);

struct RunAudits {
  std::vector<RankAudit> audits;

  /// Ranks that hold and received what was forecast; what they received depends on the rank.
  explicit RunAudits(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      RankAudit audit;
      for (std::size_t i = 0; i < kCategories; ++i) audit.memory_peak.of[i] = (i + 1) << 20;
      audit.memory_peak.total = 21 << 20;
      audit.forward.received[kEmbedding] = 4096 + static_cast<std::uint64_t>(rank) * 1024;
      audit.seconds = {.total = 1 + 0.001 * rank, .compute = 0.5, .communication = 0.25, .exposed_communication = 0.125};
      audit.forecast.memory = audit.memory_peak;
      audit.forecast.traffic.forward[Purpose::embedding] = audit.forward.received[kEmbedding];
      audits.push_back(audit);
    }
  }
  std::vector<std::string> lines() const { return audit_table(audits); }
  std::string verdict() const { return audit_verdict(audits); }
};

TEST(AuditVerdict, SaysThatEverythingEqualsTheForecastOrWhatDiffers) {
  RunAudits good(4);
  EXPECT_EQ(good.verdict(), "memory and traffic equal the forecast");
  EXPECT_TRUE(is_as_forecast(good.audits));
  EXPECT_EQ(good.lines()[1], "audit: memory and traffic equal the forecast");

  RunAudits memory(4);
  memory.audits[2].memory_peak.of[static_cast<std::size_t>(Category::activations)] += 12;
  memory.audits[2].memory_peak.total += 12;
  EXPECT_FALSE(is_as_forecast(memory.audits));
  EXPECT_EQ(memory.verdict(),
            "memory differs from the forecast: rank 2's activations by +12 bytes, and 1 figure more; traffic equals it");

  RunAudits traffic(4);
  traffic.audits[1].forward.received[kEmbedding] -= 1;
  EXPECT_FALSE(is_as_forecast(traffic.audits));
  EXPECT_EQ(traffic.verdict(), "traffic differs from the forecast: rank 1's forward embedding by -1 bytes; memory equals it");

  RunAudits both(4);
  both.audits[3].backward.received[static_cast<int>(Purpose::other)] += 8;
  both.audits[0].memory_peak.total -= 3;
  EXPECT_EQ(both.verdict(),
            "memory and traffic differ from the forecast: rank 0's total by -3 bytes; rank 3's backward other by +8 bytes");
}

TEST(AuditTable, EqualRanksShareARowAndUnequalNumbersLookUnequal) {
  RunAudits audited(4);
  std::vector<std::string> lines = audited.lines();
  EXPECT_EQ(lines[4].substr(0, 17), "0-3      1.000 = ") << lines[4];
  audited.audits[2].memory_peak.of[3] += 1;
  lines = audited.lines();
  EXPECT_EQ(lines[4].substr(0, 6), "0-1,3 ");
  EXPECT_NE(lines[5].find("4.000 +1 "), std::string::npos) << "a byte more: " << lines[5];
}

TEST(AuditTable, OfSixtyFourRanksFitsAScreen) {
  RunAudits audited(64);
  for (const std::string& line : audited.lines()) EXPECT_LE(line.size(), kTableColumns) << line;
  EXPECT_LE(audited.lines().size(), 40U);
  for (const std::string& line : audit_table(audited.audits, Audited::steps, 80)) EXPECT_LE(text_columns(line), 80U) << line;
  // All received something else: the least and the most stand for all, and a rank that isn't as forecast stands beside them.
  audited.audits[17].forward.received[kEmbedding] += 3;
  const std::vector<std::string> lines = audited.lines();
  const auto row = [&](const std::string& label) {
    const auto found =
        std::find_if(lines.begin() + 6, lines.end(), [&](const std::string& line) { return line.starts_with(label); });
    return found == lines.end() ? std::string() : *found;
  };
  EXPECT_NE(row("least ").find("0.004"), std::string::npos) << row("least ");
  EXPECT_NE(row("most ").find("0.065"), std::string::npos) << row("most ");
  EXPECT_NE(row("17 ").find(" +3"), std::string::npos) << row("17 ");
}

TEST(AuditTable, WideFiguresGoIntoASecondBlock) {
  RunAudits audited(2);
  for (RankAudit& audit : audited.audits) {
    for (std::uint64_t& bytes : audit.memory_peak.of) bytes = (std::uint64_t{123456} << 20) + 777;
  }
  for (const std::string& line : audited.lines()) EXPECT_LE(line.size(), kTableColumns) << line;
}

TEST(BytesCell, ShowsTheDifferenceWhereRoundingWouldHideIt) {
  const auto text = [](std::uint64_t measured, std::uint64_t predicted) {
    const RankCell cell = bytes_cell(measured, predicted);
    return cell.number + cell.mark;
  };
  EXPECT_EQ(text(1 << 20, 1 << 20), "1.000 =");
  EXPECT_EQ(text((1 << 20) + 4, 1 << 20), "1.000 +4");
  EXPECT_EQ(text(1 << 20, (1 << 20) + 2048), "1.000 -2.0K");
  EXPECT_EQ(text(9 << 20, 4 << 20), "9.000 +5.0M");
  EXPECT_EQ(text(8, 0), "8B +8") << "not 0.000";
  EXPECT_EQ(text(0, 0), "0.000 =");
}

TEST(Ranges, AreShort) {
  EXPECT_EQ(ranges_text(std::array{0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges_text(std::array{7}), "7");
  EXPECT_EQ(ranges_text(std::array{0, 2, 4, 6, 8, 10, 12, 14}, 14), "0,2,4,6,.. (8)");
  EXPECT_EQ(ranges_text(std::array{0, 2, 4}, 14), "0,2,4");
}

}  // namespace
}  // namespace tsprun::detail::launcher::audit_table_test
