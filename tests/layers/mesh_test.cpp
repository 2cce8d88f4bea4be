// Which ranks of a world share what.
#include "layers/layout/mesh.h"
#include "tests/support/run_ranks.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::mesh_test {
namespace {

using Ranks = std::vector<int>;

/// Members of the groups of every rank of a layout over these axes.
std::vector<Ranks> groups_over(const Layout& layout, const std::vector<AxisKind>& axes) {
  std::vector<Ranks> all(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Mesh mesh(context.world(), layout);
    const std::span<const int> members = mesh.group(axes).members();
    const std::lock_guard lock(mutex);
    all[static_cast<std::size_t>(context.rank())] = {members.begin(), members.end()};
  });
  return all;
}

TEST(Mesh, TheLastAxisVariesFastest) {
  const Layout layout = Layout::parse("dp=2,tp=2,sp=2");
  EXPECT_EQ(groups_over(layout, {AxisKind::dp})[5], (Ranks{1, 5}));
  EXPECT_EQ(groups_over(layout, {AxisKind::tp})[5], (Ranks{5, 7}));
  EXPECT_EQ(groups_over(layout, {AxisKind::sp})[5], (Ranks{4, 5}));
  EXPECT_EQ(groups_over(layout, {AxisKind::dp, AxisKind::tp})[5], (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_tokens())[5], (Ranks{4, 5}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_vocabulary())[5], (Ranks{5, 7}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_replica())[5], (Ranks{4, 5, 6, 7}));
}

TEST(Mesh, SequenceMayStandOutsideTensor) {
  const Layout layout = Layout::parse("sp=2,tp=3");
  EXPECT_EQ(groups_over(layout, {AxisKind::tp})[4], (Ranks{3, 4, 5}));
  EXPECT_EQ(groups_over(layout, {AxisKind::sp})[4], (Ranks{1, 4}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_replica())[4], (Ranks{0, 1, 2, 3, 4, 5}));
}

TEST(Mesh, TheOrderOfAxesIsTheOrderOfRanks) {
  const Layout layout = Layout::parse("dp=2,tp=2,sp=2");
  EXPECT_EQ(groups_over(layout, {AxisKind::sp, AxisKind::tp})[7], (Ranks{4, 6, 5, 7}));
  EXPECT_EQ(groups_over(layout, {AxisKind::tp, AxisKind::sp})[7], (Ranks{4, 5, 6, 7}));
}

TEST(Mesh, MegatronsSequenceParallelismGivesEveryRankTokensOfItsOwn) {
  const Layout layout = Layout::parse("dp=2,tp=2,sp=2").with(TensorExchange::sequence);
  // By (sequence, tensor): ranks 0 and 2 have the first part of the sequences.
  EXPECT_EQ(groups_over(layout, layout.axes_of_tokens())[3], (Ranks{0, 2, 1, 3}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_tokens())[6], (Ranks{4, 6, 5, 7}));
  EXPECT_EQ(groups_over(layout, layout.axes_of_vocabulary())[6], (Ranks{4, 6, 5, 7}));
}

TEST(Mesh, AxesOfOneRankCountForNothing) {
  run_ranks(2, [](Context& context) {
    Mesh mesh(context.world(), Layout::parse("tp=2,sp=1"));
    EXPECT_EQ(&mesh.group({AxisKind::tp}), &mesh.group({AxisKind::sp, AxisKind::tp}));
    EXPECT_EQ(&mesh.group({}), &mesh.group({AxisKind::dp}));
    EXPECT_EQ(mesh.group({}).size(), 1);
    EXPECT_EQ(mesh.place(AxisKind::tp), context.rank());
    EXPECT_EQ(mesh.place(AxisKind::tsp), 0);
  });
}

/// Ranks may meet in a group whatever else each of them has asked for before.
TEST(Mesh, GroupsMayBeAskedForInAnyOrder) {
  run_ranks(8, [](Context& context) {
    Mesh mesh(context.world(), Layout::parse("dp=2,tp=2,sp=2"));
    std::vector<std::vector<AxisKind>> asked = {
        {AxisKind::dp}, {AxisKind::tp}, {AxisKind::sp}, {AxisKind::dp, AxisKind::sp}, {AxisKind::dp, AxisKind::tp, AxisKind::sp}};
    std::rotate(asked.begin(), asked.begin() + context.rank() % 5, asked.end());
    for (const std::vector<AxisKind>& axes : asked) mesh.group(axes);
    for (const auto& [axes, expected] :
         {std::pair{std::vector{AxisKind::dp, AxisKind::sp}, 4.0}, {std::vector{AxisKind::tp}, 2.0}}) {
      double one = 1;
      mesh.group(axes).all_reduce(std::span<double>(&one, 1), Reduction::sum);
      EXPECT_EQ(one, expected);
    }
  });
}

TEST(Mesh, ErrorsNameAGroupByItsAxes) {
  try {
    run_ranks(4, [](Context& context) {
      Mesh mesh(context.world(), Layout::parse("dp=2,tp=2"));
      std::vector<double> values(context.rank() == 3 ? 2 : 1);
      mesh.group({AxisKind::tp}).all_reduce(std::span<double>(values), Reduction::sum);
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("(tp)"), std::string::npos) << error.what();
  }
}

TEST(Mesh, DegreesMustGiveTheWorld) {
  run_ranks(2, [](Context& context) {
    EXPECT_THROW(Mesh(context.world(), Layout::tsp(3)), Error);
    EXPECT_THROW(Mesh(context.world(), (Layout{{{AxisKind::dp, 0}, {AxisKind::tsp, 2}}})), Error);
  });
}

}  // namespace
}  // namespace tsprun::detail::test::mesh_test
