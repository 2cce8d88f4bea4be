// A rank that has left its job communicates no more, and says so.
#include "tests/support/refusal.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test::left_context_test {
namespace {

TEST(LeftContext, RefusesOperationsAndMemoryAndKeepsItsBlocks) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](Context& context) {
      const HeapBlock block = context.allocate(64, "block");
      std::vector<float> data(1, 1.0F);
      const std::span<float> span(data);
      context.world().all_reduce(span, Reduction::sum);
      context.leave();
      context.leave();
      block.bytes().front() = std::byte{1};
      const std::string why = "this rank has left the job";
      EXPECT_NE(refused_text([&] { context.world().barrier(); }).find("barrier: " + why), std::string::npos);
      EXPECT_NE(refused_text([&] { context.world().all_reduce(span, Reduction::sum); }).find(why), std::string::npos);
      EXPECT_NE(refused_text([&] { context.world().post_all_reduce(Buffer(span), Buffer(span), Reduction::sum); }).find(why),
                std::string::npos);
      if (context.size() > 1) {
        EXPECT_NE(refused_text([&] { context.world().send(std::span<const float>(data), 1 - context.rank()); }).find(why),
                  std::string::npos);
      }
      EXPECT_NE(refused_text([&] { context.allocate(64, "too late"); }).find("too late: " + why), std::string::npos);
    });
  }
}

}  // namespace
}  // namespace tsprun::detail::test::left_context_test
