// What --layout accepts, and what its refusals say.
#include "launcher/layout.h"

#include "transport/cause.h"

#include <gtest/gtest.h>

namespace tsprun::launcher::layout_test {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_layout(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    return error.what();
  }
  return {};
}

TEST(Layout, AxesKeepTheirOrderAndDegreesMultiply) {
  const Layout layout = parse_layout("dp=2,tp=3,sp=4");
  ASSERT_EQ(layout.axes.size(), 3U);
  EXPECT_EQ(layout.axes[0].name, "dp");
  EXPECT_EQ(layout.axes[2].name, "sp");
  EXPECT_EQ(layout.product(), 24);
  EXPECT_EQ(layout.print(), "dp=2,tp=3,sp=4");
}

TEST(Layout, EveryAllowedCombinationIsAccepted) {
  for (const char* text : {"tsp=4", "zero3=4", "tp=4", "sp=4", "tp=2,sp=2", "sp=2,tp=2", "tp=2,tsp=2", "dp=2", "dp=2,tsp=2",
                           "dp=2,zero3=4", "dp=2,tp=2,sp=2", "dp=2,tp=2,tsp=2"}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(Layout, ARefusalSaysWhichAxisWasMeant) {
  EXPECT_NE(refusal("tps=4").find("did you mean tsp?"), std::string::npos) << refusal("tps=4");
  EXPECT_NE(refusal("fsdp=4").find("did you mean zero3?"), std::string::npos);
  EXPECT_NE(refusal("tp=2,cp=2").find("did you mean sp?"), std::string::npos);
  EXPECT_NE(refusal("TP=2").find("did you mean tp?"), std::string::npos);
  EXPECT_EQ(refusal("pp=2").find("did you mean"), std::string::npos) << "there are no pipelines here";
}

TEST(Layout, WhatCannotBeMixedIsRefused) {
  for (const char* text : {"tsp=2,sp=2", "zero3=2,tp=2", "zero3=2,sp=2", "zero3=2,tsp=2", "tp=2,dp=2", "tp=2,tp=2"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(Layout, RefusalsNameTheOptionTheValueAndWhatWorks) {
  EXPECT_EQ(refusal("tsp=0"), "--layout tsp=0: degree 0 of tsp is out of range; try tsp=1");
  EXPECT_NE(refusal("tsp=two").find("try tsp=2"), std::string::npos);
  EXPECT_NE(refusal("pp=2").find("no axis 'pp'"), std::string::npos);
  EXPECT_NE(refusal("tsp").find("no '='"), std::string::npos);
  EXPECT_EQ(refusal("dp=2,dp=2"), "--layout dp=2,dp=2: axis dp comes twice; give it once, with the product of both degrees");
  EXPECT_NE(refusal("").find("--layout"), std::string::npos);
  EXPECT_NE(refusal("tsp=2,").find("no '='"), std::string::npos);
}

TEST(Layout, ProductsThatWouldOverflowAreRefused) {
  EXPECT_NE(refusal("dp=1000000,tp=1000000,sp=1000000"), "");
  EXPECT_NE(refusal("tsp=99999999999999999999"), "");
}

TEST(Layout, RanksAloneMeanTsp) { EXPECT_EQ(default_layout(6).print(), "tsp=6"); }

}  // namespace
}  // namespace tsprun::launcher::layout_test
