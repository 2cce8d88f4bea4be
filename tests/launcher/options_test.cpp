// Sizes, numbers and the validation of global options.
#include "launcher/options.h"

#include "tests/support/refusal.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/machine.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

namespace tsprun::detail::launcher::options_test {
namespace {

TEST(Sizes, SuffixesArePowersOf1024) {
  EXPECT_EQ(parse_size("--sizes", "8"), 8U);
  EXPECT_EQ(parse_size("--sizes", "64K"), 65536U);
  EXPECT_EQ(parse_size("--sizes", "16M"), 16777216U);
  EXPECT_EQ(parse_size("--sizes", "2G"), 2147483648U);
  EXPECT_EQ(parse_size("--sizes", "2g"), 2147483648U);
  EXPECT_EQ(parse_size("--sizes", "0"), 0U);
}

TEST(Sizes, KilobytesAndKibibytesAreWrittenInManyWays) {
  for (const char* text : {"64K", "64k", "64KB", "64kB", "64kb", "64KiB", "64kib", "65536B", "65536"})
    EXPECT_EQ(parse_size("--sizes", text), 65536U) << text;
  EXPECT_EQ(parse_size("--mem", "192GB"), std::uint64_t{192} << 30);
  EXPECT_EQ(parse_size("--mem", "3TiB"), std::uint64_t{3} << 40);
}

TEST(Sizes, WhatIsNoSizeIsRefusedByName) {
  for (const char* text : {"", "K", "64X", "64KX", "64KBB", "64Ki", "64 K", "64BK", "-1", " 8", "1.5M", "0x10"}) {
    EXPECT_NE(test::refused_text([&] { parse_size("--sizes", text); }).find("--sizes"), std::string::npos) << text;
  }
}

TEST(Sizes, TheRefusalSaysWhatASuffixMeans) {
  EXPECT_NE(test::refused_text([] { parse_size("--mem", "1.5GB"); }).find("powers of 1024, and so are KB, MB, GB"),
            std::string::npos);
}

TEST(Sizes, OverflowIsRefused) {
  EXPECT_NE(test::refused_text([] { parse_size("--sizes", "18446744073709551616"); }), "");
  EXPECT_NE(test::refused_text([] { parse_size("--sizes", "17179869184G"); }), "");
  EXPECT_EQ(parse_size("--sizes", "17179869183G"), 17179869183ULL << 30);
}

TEST(Sizes, TextIsTheShortestThatParsesBack) {
  for (const std::uint64_t bytes : {0ULL, 1ULL, 1000ULL, 1024ULL, 65536ULL, 65537ULL, 1ULL << 30, 3ULL << 40}) {
    EXPECT_EQ(parse_size("", format_size(bytes)), bytes);
  }
  EXPECT_EQ(format_size(65536), "64K");
}

TEST(Integers, BoundsHoldAndTheNearestValueIsNamed) {
  EXPECT_EQ(parse_integer("-n", "7", 1, 10), 7);
  EXPECT_EQ(test::refused_text([] { parse_integer("-n", "0", 1, 10); }), "-n 0: 1 to 10 work; try 1");
  EXPECT_EQ(test::refused_text([] { parse_integer("-n", "11", 1, 10); }), "-n 11: 1 to 10 work; try 10");
  EXPECT_EQ(test::refused_text([] { parse_integer("-n", "99999999999999999999", 1, 10); }),
            "-n 99999999999999999999: 1 to 10 work; try 10");
  EXPECT_EQ(test::refused_text([] { parse_integer("-n", "-99999999999999999999", 1, 10); }),
            "-n -99999999999999999999: 1 to 10 work; try 1");
  for (const char* text : {"", "x", "3x", "3.5"})
    EXPECT_NE(test::refused_text([&] { parse_integer("-n", text, 1, 10); }), "") << text;
}

TEST(GlobalOptions, RanksComeFromNumberOrLayout) {
  GlobalOptions by_number;
  by_number.ranks.text = "4";
  validate_global(by_number, RankUse::on_paper, 1);
  EXPECT_EQ(by_number.ranks, 4);
  EXPECT_EQ(by_number.layout->print(), "tsp=4");

  GlobalOptions by_layout;
  by_layout.layout.text = "tp=2,sp=3";
  validate_global(by_layout, RankUse::on_paper, 1);
  EXPECT_EQ(by_layout.ranks, 6);

  GlobalOptions by_nothing;
  validate_global(by_nothing, RankUse::on_paper, 1);
  EXPECT_EQ(by_nothing.ranks, 1);
}

TEST(GlobalOptions, ThreadsAreTheCoresOfARankAndAtLeastOne) {
  const auto threads = [](const char* ranks, const char* text) {
    GlobalOptions options;
    options.ranks.text = ranks;
    options.threads.text = text;
    validate_global(options, RankUse::on_paper, 1);
    return options.threads;
  };
  EXPECT_EQ(threads("1", ""), machine::usable_cores());
  EXPECT_EQ(threads("1024", ""), 1);
  EXPECT_EQ(threads("1024", "3"), 3);
  EXPECT_EQ(test::refused_text([&] { threads("1", "0"); }), "--threads 0: 1 to 1024 work; try 1");
}

TEST(GlobalOptions, DisagreementNamesBoth) {
  GlobalOptions options;
  options.ranks.text = "6";
  options.layout.text = "tp=2,sp=2";
  const std::string message = test::refused_text([&] { validate_global(options, RankUse::on_paper, 1); });
  EXPECT_EQ(message, "--layout tp=2,sp=2 needs 4 ranks, but -n says 6; try -n 4 or --layout tsp=6");
}

TEST(GlobalOptions, TooManyRanksAreRefused) {
  GlobalOptions options;
  options.ranks.text = "100000";
  EXPECT_EQ(test::refused_text([&] { validate_global(options, RankUse::job, 1); }), "-n 100000: 1 to 1024 work; try 1024");
  EXPECT_EQ(test::refused_text([&] { validate_global(options, RankUse::on_paper, 1); }), "-n 100000: 1 to 65536 work; try 65536");
  options.ranks.text = "2048";
  validate_global(options, RankUse::on_paper, 1);
  EXPECT_EQ(options.ranks, 2048);
}

TEST(GlobalOptions, BudgetsBeyondTheMachineAreRefused) {
  GlobalOptions options;
  options.ranks.text = "256";
  options.mem_per_rank.text = "64G";
  EXPECT_NE(test::refused_text([&] { validate_global(options, RankUse::job, 1); }).find("try --mem-per-rank"), std::string::npos);
}

TEST(GlobalOptions, WrongTextsAreRefusedByName) {
  const auto with = [](const std::string& name, const char* text) {
    GlobalOptions options;
    CLI::App app;
    OptionTable table(options);
    table.bind(app);
    app.parse(std::vector<std::string>{text, name});  // the last word first, as CLI11 wants them
    return test::refused_text([&] { validate_global(options, RankUse::on_paper, 1); });
  };
  EXPECT_NE(with("--intra", "pigeon").find("--intra pigeon"), std::string::npos);
  EXPECT_NE(with("--inter", "pigeon").find("--inter pigeon"), std::string::npos);
  EXPECT_NE(with("--nodes", "70000").find("--nodes 70000"), std::string::npos);
  EXPECT_NE(with("--nnodes", "1").find("--node-rank"), std::string::npos);
  EXPECT_NE(with("--rendezvous", "here").find("--rendezvous here"), std::string::npos);
  EXPECT_NE(with("--tls", "maybe").find("--tls maybe: auto, on and off work"), std::string::npos);
  EXPECT_EQ(with("--sp", "round"), "--sp round: gather, ring and ulysses work");
  EXPECT_EQ(with("--tp", "serial"), "--tp serial: plain and sequence work");
  EXPECT_NE(with("--bind", "socket").find("--bind socket"), std::string::npos);
  EXPECT_NE(with("--log-level", "loud").find("--log-level loud"), std::string::npos);
  for (const char* text : {"0", "-1", "nan", "inf", "1e99", "3s"}) {
    EXPECT_NE(with("--timeout", text).find("--timeout"), std::string::npos) << text;
  }
  EXPECT_EQ(with("--timeout", "0.5"), "");
}

TEST(GlobalOptionsTls, IsOnBetweenMachinesUnlessItIsTurnedOff) {
  GlobalOptions options;
  EXPECT_FALSE(uses_tls(options));
  options.several_machines = true;
  EXPECT_TRUE(uses_tls(options));
  options.tls = Encryption::off;
  EXPECT_FALSE(uses_tls(options));
  options.several_machines = false;
  options.tls = Encryption::on;
  EXPECT_TRUE(uses_tls(options));
}

TEST(GlobalOptionsIgnored, AreThoseThatWereTypedAndHaveNothingToChoose) {
  EXPECT_TRUE(ignored_options({}, RankUse::job).empty());
  GlobalOptions options;
  options.secret_file = "s";
  options.inter = demand_for("verbs");
  options.rdma = "mlx5_0";
  EXPECT_EQ(ignored_options(options, RankUse::job).size(), 3U);
  options.nodes = 2;  // pretended ones: their secret is made for each job
  EXPECT_EQ(ignored_options(options, RankUse::job).size(), 1U);
  options.several_machines = true;
  EXPECT_TRUE(ignored_options(options, RankUse::job).empty());
}

TEST(GlobalOptionsIgnored, AreSaidBeforeTheRanksOfSeveralJobsAreKnown) {
  GlobalOptions options;
  options.tls = Encryption::on;
  EXPECT_EQ(ignored_options(options, RankUse::jobs).size(), 1U);  // shared memory, whatever the layouts
  options.intra = demand_for("tcp");
  EXPECT_TRUE(ignored_options(options, RankUse::jobs).empty());
  EXPECT_EQ(ignored_options(options, RankUse::job).size(), 1U);  // one rank
  options.intra = GlobalOptions().intra;
  options.nodes = 2;
  EXPECT_TRUE(ignored_options(options, RankUse::jobs).empty());
}

}  // namespace
}  // namespace tsprun::detail::launcher::options_test
