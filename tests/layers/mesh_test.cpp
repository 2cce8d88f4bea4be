// Which ranks of a world share what.
#include "layers/layout/mesh.h"
#include "tests/support/run_ranks.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

namespace tsprun::detail::test::mesh_test {
namespace {

struct Groups {
  std::vector<int> data, tensor, sequence, tokens;
};

std::vector<Groups> groups_of(const Layout& layout) {
  std::vector<Groups> all(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Mesh mesh(context.world(), layout);
    const auto members = [](Communicator& group) { return std::vector<int>(group.members().begin(), group.members().end()); };
    const std::lock_guard lock(mutex);
    all[static_cast<std::size_t>(context.rank())] = {members(mesh.data()), members(mesh.tensor()), members(mesh.sequence()),
                                                     members(mesh.tokens())};
  });
  return all;
}

using Ranks = std::vector<int>;

TEST(Mesh, TheLastAxisVariesFastest) {
  const std::vector<Groups> all = groups_of(Layout::parse("dp=2,tp=2,sp=2"));
  EXPECT_EQ(all[5].data, (Ranks{1, 5}));
  EXPECT_EQ(all[5].tensor, (Ranks{5, 7}));
  EXPECT_EQ(all[5].sequence, (Ranks{4, 5}));
  EXPECT_EQ(all[5].tokens, (Ranks{4, 5}));
}

TEST(Mesh, SequenceMayStandOutsideTensor) {
  const std::vector<Groups> all = groups_of(Layout::parse("sp=2,tp=3"));
  EXPECT_EQ(all[4].tensor, (Ranks{3, 4, 5}));
  EXPECT_EQ(all[4].sequence, (Ranks{1, 4}));
}

TEST(Mesh, MegatronsSequenceParallelismGivesEveryRankTokensOfItsOwn) {
  const std::vector<Groups> all = groups_of(Layout::parse("dp=2,tp=2,sp=2").with(TensorExchange::sequence));
  // By (sequence, tensor): ranks 0 and 2 have the first part of the sequences.
  EXPECT_EQ(all[3].tokens, (Ranks{0, 2, 1, 3}));
  EXPECT_EQ(all[6].tokens, (Ranks{4, 6, 5, 7}));
}

TEST(Mesh, DegreesMustGiveTheWorld) {
  run_ranks(2, [](Context& context) {
    EXPECT_THROW(Mesh(context.world(), Layout::tsp(3)), Error);
    EXPECT_THROW(Mesh(context.world(), (Layout{{{AxisKind::dp, 0}, {AxisKind::tsp, 2}}})), Error);
  });
}

}  // namespace
}  // namespace tsprun::detail::test::mesh_test
