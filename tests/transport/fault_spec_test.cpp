// The grammar of --fault: the documented examples mean what they say, and what can't be meant is refused with a form that works.
#include "transport/fault/grammar.h"
#include "transport/fault/spec.h"

#include "transport/cause.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::fault::fault_spec_test {
namespace {

std::string refusal(const std::string& text, int ranks = 0) {
  try {
    parse(text, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    return error.what();
  }
  return "accepted";
}

TEST(FaultSpec, KillAtAStepOrAtAnOperation) {
  const Spec at_step = parse("kill:rank=3,step=12");
  EXPECT_EQ(at_step.kind, Kind::kill);
  EXPECT_EQ(at_step.rank, 3);
  EXPECT_EQ(at_step.step, 12u);
  EXPECT_TRUE(at_step.op.empty());
  EXPECT_EQ(at_step.text, "kill:rank=3,step=12");
  const Spec at_operation = parse("kill:rank=3,op=all_gather,seq=42");
  EXPECT_EQ(at_operation.op, "all_gather");
  EXPECT_EQ(at_operation.sequence, 42u);
  EXPECT_EQ(at_operation.step, 0u);
  EXPECT_EQ(parse("kill:rank=0,op=barrier").sequence, 1u);
}

TEST(FaultSpec, EveryOtherKind) {
  const Spec stall = parse("stall:rank=1,step=5,seconds=60");
  EXPECT_EQ(stall.kind, Kind::stall);
  EXPECT_EQ(stall.seconds, 60);
  const Spec delay = parse("delay:from=0,to=1,ms=20,prob=0.1,seed=7");
  EXPECT_EQ(delay.kind, Kind::delay);
  EXPECT_EQ(delay.from, 0);
  EXPECT_EQ(delay.to, 1);
  EXPECT_EQ(delay.milliseconds, 20);
  EXPECT_EQ(delay.probability, 0.1);
  EXPECT_EQ(delay.seed, 7u);
  EXPECT_EQ(parse("delay:from=0,to=1,ms=20").probability, 1);
  EXPECT_EQ(parse("slow:from=0,to=1,gbps=0.5").gigabytes_per_s, 0.5);
  EXPECT_EQ(parse("corrupt:from=0,to=1,nth=7").nth, 7u);
  EXPECT_EQ(parse("drop:to=1,from=0,prob=0.01").probability, 0.01);
  EXPECT_EQ(parse("disconnect:from=0,to=1,step=3").step, 3u);
  EXPECT_EQ(parse("oom:rank=2,step=4").rank, 2);
}

TEST(FaultSpec, RefusalsSayWhatIsWrongAndWhatWorks) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "there is no kind ''; the kinds are kill, stall,"},
      {"kil:rank=3,step=1", "there is no kind 'kil' (did you mean kill?); the kinds are kill, stall,"},
      {"kill:rnak=3,step=1", "kill takes no 'rnak', but rank, step, op, seq, seed (did you mean rank?)"},
      {"kill", "kill needs rank, such as kill:rank=3,step=12"},
      {"kill:rank=3", "needs one of step, op"},
      {"kill:rank=3,step=1,op=barrier", "needs one of step, op"},
      {"kill:rank=3,step=1,seq=4", "needs op"},
      {"kill:rank=3,op=", "op is empty"},
      {"kill:rank=-1,step=1", "rank=-1 isn't a whole number from 0"},
      {"kill:rank=3,step=0", "step=0 isn't a whole number from 1"},
      {"kill:rank=3x,step=1", "rank=3x isn't"},
      {"kill:rank=3,step=99999999999999999999", "isn't a whole number"},
      {"kill:rank=3,rank=4,step=1", "'rank' comes twice"},
      {"kill:rank=3,step=1,ms=4", "kill takes no 'ms'"},
      {"kill:rank", "has no '='"},
      {"stall:rank=1,step=5", "stall needs seconds"},
      {"delay:from=0,to=1", "delay needs ms"},
      {"delay:from=0,to=1,ms=nan", "ms=nan isn't a number"},
      {"delay:from=0,to=1,ms=2,prob=1.5", "prob=1.5 isn't a number from 0 to 1"},
      {"slow:from=0,to=1,gbps=0", "gbps=0 isn't a number"},
      {"corrupt:from=0,to=1", "needs one of nth, prob"},
      {"oom:rank=2", "oom needs step"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find("--fault " + text + ": "), std::string::npos) << message;
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

TEST(FaultSpec, TheExampleOfEachKindIsAccepted) {
  for (const Form& form : forms()) EXPECT_EQ(parse(form.example).kind, form.kind) << form.example;
}

TEST(FaultSpec, RanksMustExistAndDiffer) {
  EXPECT_NO_THROW(parse("kill:rank=3,step=1", 4));
  EXPECT_EQ(refusal("kill:rank=4,step=1", 4), "--fault kill:rank=4,step=1: rank=4, but the ranks are 0 to 3");
  EXPECT_EQ(refusal("slow:from=0,to=4,gbps=1", 4), "--fault slow:from=0,to=4,gbps=1: to=4, but the ranks are 0 to 3");
  EXPECT_EQ(refusal("slow:from=1,to=1,gbps=1", 4), "--fault slow:from=1,to=1,gbps=1: a rank sends itself no messages");
  EXPECT_NE(refusal("slow:from=0,to=0,gbps=1", 1).find("one rank alone sends no messages; try -n 2"), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::fault::fault_spec_test
