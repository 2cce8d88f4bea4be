// What --layout accepts, and what its refusals say.
#include "layers/layout/layout.h"

#include "tests/support/refusal.h"

#include <gtest/gtest.h>

namespace tsprun::detail::test::layout_test {
namespace {

std::string refusal(const std::string& text) {
  return refused_text([&] { Layout::parse(text); });
}

TEST(Layout, AxesKeepTheirOrderAndDegreesMultiply) {
  const Layout layout = Layout::parse("dp=2,tp=3,sp=4");
  ASSERT_EQ(layout.axes.size(), 3U);
  EXPECT_EQ(layout.axes[0].kind, AxisKind::dp);
  EXPECT_EQ(layout.axes[2].kind, AxisKind::sp);
  EXPECT_EQ(layout.ranks(), 24);
  EXPECT_EQ(layout.print(), "dp=2,tp=3,sp=4");
}

TEST(Layout, EveryAllowedCombinationIsAccepted) {
  for (const char* text :
       {"tsp=4", "zero3=4", "tp=4", "sp=4", "tp=2,sp=2", "sp=2,tp=2", "tp=2,tsp=2", "dp=2", "dp=2,tsp=2", "dp=2,zero3=4",
        "dp=2,tp=2,sp=2", "dp=2,tp=2,tsp=2", "pp=2,tsp=2", "dp=2,pp=3,tp=2", "dp=2,shard=4", "dp=2,shard=4,pp=2,tp=2"}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(Layout, ARefusalSaysWhichAxisWasMeant) {
  EXPECT_NE(refusal("tps=4").find("did you mean tsp?"), std::string::npos) << refusal("tps=4");
  EXPECT_NE(refusal("fsdp=4").find("dp with --dp zero3 is what FSDP does"), std::string::npos);
  EXPECT_NE(refusal("tp=2,cp=2").find("did you mean sp?"), std::string::npos);
  EXPECT_NE(refusal("TP=2").find("did you mean tp?"), std::string::npos);
  EXPECT_NE(refusal("pipeline=2").find("did you mean pp?"), std::string::npos);
  EXPECT_EQ(refusal("ep=2").find("did you mean"), std::string::npos) << "there are no experts here";
}

TEST(Layout, WhatCannotBeMixedIsRefused) {
  for (const char* text : {"tsp=2,sp=2", "zero3=2,tp=2", "zero3=2,sp=2", "zero3=2,tsp=2", "tp=2,dp=2", "tp=2,tp=2"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(Layout, RefusalsNameTheOptionTheValueAndWhatWorks) {
  EXPECT_EQ(refusal("tsp=0"), "--layout tsp=0: degree 0 of tsp is out of range; try tsp=1");
  EXPECT_NE(refusal("tsp=two").find("try tsp=2"), std::string::npos);
  EXPECT_NE(refusal("ep=2").find("no axis 'ep'"), std::string::npos);
  EXPECT_NE(refusal("tsp").find("no '='"), std::string::npos);
  EXPECT_EQ(refusal("dp=2,dp=2"), "--layout dp=2,dp=2: axis dp comes twice; give it once, with the product of both degrees");
  EXPECT_EQ(refusal("tp=2,dp=2"), "--layout tp=2,dp=2: dp must stand first: write dp before the other axes");
  EXPECT_EQ(refusal("pp=2,dp=2"), "--layout pp=2,dp=2: dp must stand first: write dp before the other axes");
  EXPECT_EQ(refusal("dp=2,tsp=2,pp=2"),
            "--layout dp=2,tsp=2,pp=2: pp must stand first, behind dp and shard alone: write pp before the other axes");
  EXPECT_EQ(refusal("shard=2,dp=2"), "--layout shard=2,dp=2: dp must stand first: write dp before the other axes");
  EXPECT_EQ(refusal("shard=4,tsp=2"), "--layout shard=4,tsp=2: shard cuts each rank of dp again, and there are none; try dp=4");
  EXPECT_NE(refusal("").find("--layout"), std::string::npos);
  EXPECT_NE(refusal("tsp=2,").find("no '='"), std::string::npos);
}

TEST(Layout, ProductsThatWouldOverflowAreRefused) {
  EXPECT_NE(refusal("dp=1000000,tp=1000000,sp=1000000"), "");
  EXPECT_NE(refusal("tsp=99999999999999999999"), "");
}

TEST(Layout, WhatCannotBeMixedIsRefusedHoweverItWasMade) {
  EXPECT_EQ((Layout{{{AxisKind::zero3, 2}, {AxisKind::tp, 2}}}).why_not(),
            "zero3 can't be mixed with tp, sp or tsp; try zero3 alone or after dp");
  EXPECT_EQ((Layout{{{AxisKind::sp, 2}, {AxisKind::tsp, 2}}}).why_not(),
            "tsp holds the sequence already and can't be mixed with sp; try tsp alone, or tp with tsp");
}

TEST(Layout, TwoAxesNeverCutTheSame) {
  for (const AxisRow& one : kAxes) {
    for (const AxisRow& other : kAxes) {
      const bool same = one.cuts == other.cuts || (cuts_tokens(one.cuts) && cuts_tokens(other.cuts));
      const bool refused = !Layout{{{one.kind, 2}, {other.kind, 2}}}.why_not().empty();
      EXPECT_TRUE(refused || !same) << one.name << ", " << other.name;
    }
  }
}

TEST(Layout, AnAxisOfOneRankIsPrintedAsTypedAndChangesNothing) {
  const Layout typed = Layout::parse("dp=1,tp=2,sp=1");
  EXPECT_EQ(typed.print(), "dp=1,tp=2,sp=1");
  EXPECT_EQ(typed.canonical().print(), "tp=2");
  EXPECT_EQ(typed.with(SequenceExchange::ring), typed);
  EXPECT_EQ(typed.with(TensorExchange::sequence).canonical().label(), "tp=2 (sequence)");
  EXPECT_EQ(Layout::parse("tsp=1").canonical().print(), "1");
}

TEST(Layout, RanksAloneMeanTsp) { EXPECT_EQ(Layout::tsp(6).print(), "tsp=6"); }

}  // namespace
}  // namespace tsprun::detail::test::layout_test
