// Documents that are packed into sequences, in flash attention: at every level that this machine offers, against the textbook's
// formula in f64, in which a query sees the keys of its own document; what is hidden, and the work that documents save.
#include "core/kernels/flash_tiles.h"
#include "core/kernels/level.h"
#include "tests/core/flash_support.h"

#include <array>
#include <random>

namespace tsprun::detail::test::flash_documents_kernel_test {
namespace {

using namespace flash;
using kernels::Level;

/// Where the documents of a batch begin. Owns what a mask borrows.
class Packed {
 public:
  /// Fills each of `batch` sequences of `length` tokens with documents of these lengths, over and over; the first sequence begins
  /// with the first length, the second with the second, … The last document of a sequence is cut.
  Packed(std::size_t batch, std::size_t length, const std::vector<std::size_t>& lengths) : length_(length) {
    for (std::size_t b = 0; b < batch; ++b) {
      std::size_t start = 0;
      for (std::size_t number = b; start < length; ++number) {
        const std::size_t end = std::min(length, start + lengths[number % lengths.size()]);
        starts_.resize(b * length + end, static_cast<std::uint32_t>(start));
        start = end;
      }
    }
  }
  kernels::Mask mask(std::size_t query_start = 0, std::size_t key_start = 0, std::size_t window = 0) const {
    return kernels::Mask::from_positions(query_start, key_start, window, {.starts = starts_.data(), .length = length_});
  }

 private:
  std::vector<std::uint32_t> starts_;
  std::size_t length_;
};

/// Documents whose tokens are dealt: of each document, cut into as many pieces as there are stretches, stretch c has piece c.
/// Owns what a mask borrows.
class Dealt {
 public:
  /// Documents as those of Packed.
  Dealt(std::size_t batch, std::size_t length, const std::vector<std::size_t>& lengths, std::size_t stretches) : length_(length) {
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t stretch = 0; stretch < stretches; ++stretch) {
        std::size_t start = 0;
        for (std::size_t number = b; start < length; ++number) {
          const std::size_t tokens = std::min(length - start, lengths[number % lengths.size()]);
          for (std::size_t i = tokens * stretch / stretches; i < tokens * (stretch + 1) / stretches; ++i) {
            starts_.push_back(static_cast<std::uint32_t>(start));
            positions_.push_back(static_cast<std::uint32_t>(i));
          }
          start += tokens;
        }
      }
    }
  }
  kernels::Mask mask(std::size_t query_start = 0, std::size_t key_start = 0, std::size_t window = 0) const {
    return kernels::Mask::from_positions(query_start, key_start, window,
                                         {.starts = starts_.data(), .length = length_, .positions = positions_.data()});
  }

 private:
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> positions_;
  std::size_t length_;
};

/// Of one token, of a few, and of more than a tile of keys or queries; and one that is longer than any sequence here.
const std::vector<std::vector<std::size_t>> kLengths = {
    {1}, {1, 5, 2, 1, 1, 48, 3}, {30, 97, 7, 1, 250, 64}, {700, 1, 640}, {100000}};

class FlashDocuments : public testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (!kernels::offers(GetParam())) GTEST_SKIP() << "this machine offers " << name(kernels::best_level()) << " at most";
    kernels::set_level(GetParam());
  }
  void TearDown() override {
    if (!IsSkipped()) kernels::set_level(before_);
  }

 private:
  Level before_ = kernels::level();
};
INSTANTIATE_TEST_SUITE_P(At, FlashDocuments,
                         testing::Values(Level::baseline, Level::neon, Level::avx2, Level::avx512, Level::avx512_bf16,
                                         Level::amx_bf16),
                         [](const auto& of) { return std::string(name(of.param)); });

TEST_P(FlashDocuments, EqualTheFormula) {
  for (const std::vector<std::size_t>& lengths : kLengths) {
    const Packed two(2, 37, lengths);
    const Packed long_ones(3, 300, lengths);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const std::size_t window : {0U, 1U, 6U, 90U}) {
        check({2, 37, 37, 2, 1, 20, two.mask(0, 0, window), {.group = 2}}, dtype);
        check({3, 300, 300, 1, 1, 33, long_ones.mask(0, 0, window), {}, {}, window == 6 ? 0.7 : 0.0}, dtype, 2, 2);
      }
    }
  }
}

TEST(FlashDocumentsOfManyTiles, EqualTheFormula) {
  for (const std::vector<std::size_t>& lengths : kLengths) {
    const Packed packed(2, 1300, lengths);
    check({2, 1300, 1300, 1, 1, 8, packed.mask(), {}}, DType::f64);
    check({2, 1300, 1300, 2, 1, 8, packed.mask(0, 0, 577), {.group = 2}}, DType::f32, 3);
    check({1, 1300, 1300, 1, 1, 8, packed.mask(), {}}, DType::bf16, 2);
  }
}

TEST_P(FlashDocuments, AreThoseOfPositionsWhereverChunksBegin) {
  for (const std::vector<std::size_t>& lengths : kLengths) {
    const Packed packed(2, 1000, lengths);
    // Chunks of a prefix, of a ring, and some whose queries see none of the keys.
    for (const auto& [query_start, key_start] :
         {std::pair<std::size_t, std::size_t>{250, 0}, {100, 0}, {50, 80}, {0, 300}, {700, 0}, {45, 7}, {101, 98}}) {
      for (const std::size_t window : {0U, 60U}) {
        check({2, 60, 45, 1, 1, 8, packed.mask(query_start, key_start, window), {}}, DType::f64, 1, 2);
        check({2, 200, 310, 2, 2, 16, packed.mask(query_start, key_start, window), {}}, DType::f32);
        check({1, 1, 310, 2, 1, 16, packed.mask(query_start, key_start, window), {.group = 2}}, DType::bf16);
      }
    }
  }
}

TEST_P(FlashDocuments, AreTheirOwnWhereTokensAreDealt) {
  const std::array<std::pair<std::size_t, std::size_t>, 7> places = {
      {{0, 0}, {250, 0}, {50, 80}, {0, 300}, {690, 0}, {690, 400}, {101, 98}}};
  std::size_t turn = 0;
  for (const std::vector<std::size_t>& lengths : kLengths) {
    for (const std::size_t stretches : {1U, 4U, 6U}) {
      const Dealt dealt(2, 1000, lengths, stretches);
      // One window a place, in turns: over all stretches each place has each window, since 7 places leave a rest of 1 by 3.
      for (const auto& [query_start, key_start] : places) {
        const std::size_t window = std::array{0U, 1U, 60U}[turn++ % 3];
        check({2, 60, 45, 1, 1, 8, dealt.mask(query_start, key_start, window), {}}, DType::f64, 1, 2);
        check({2, 200, 310, 2, 2, 16, dealt.mask(query_start, key_start, window), {}, {}, window == 1 ? 0.7 : 0.0}, DType::f32);
        check({2, 200, 310, 2, 1, 20, dealt.mask(query_start, key_start, window), {.group = 2}}, DType::bf16, 2, 2);
      }
    }
  }
}

TEST(FlashDocumentsOfManyTiles, EqualTheFormulaWhereTokensAreDealt) {
  for (const std::vector<std::size_t>& lengths : kLengths) {
    const Dealt dealt(2, 1300, lengths, 6);
    check({2, 1300, 1300, 1, 1, 8, dealt.mask(), {}}, DType::f64);
    check({2, 1300, 1300, 2, 1, 8, dealt.mask(0, 0, 577), {.group = 2}}, DType::f32, 3);
    check({1, 1300, 1300, 1, 1, 8, dealt.mask(), {}}, DType::bf16, 2);
  }
}

TEST(FlashDocumentsAtThisLevel, DropByPositionsInTheSequence) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 77}, .first_sequence = 3, .first_head = 5};
  const Packed packed(2, 300, {30, 97, 7, 1});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    check({2, 300, 300, 2, 1, 8, packed.mask(), {.group = 2}, dropout}, dtype);
}

bool same_bits(const Results& a, const Results& b) {
  return a.o == b.o && a.lse == b.lse && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv;
}

TEST_P(FlashDocuments, ThatHideNothingChangeNoBit) {
  const Packed packed(2, 700, {100000});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t window : {0U, 101U}) {
      Problem problem({2, 700, 700, 4, 2, 32, packed.mask(0, 0, window), {.group = 2}}, dtype);
      const Results with = run(problem, 2);
      problem.attention.mask.documents = {};
      EXPECT_TRUE(same_bits(with, run(problem, 2))) << name(dtype) << ", window " << window;
    }
  }
}

TEST(FlashDocumentsAtThisLevel, HaveTheSameBitsForAnyNumberOfThreads) {
  const Packed packed(1, 1200, {333, 1, 90, 250});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t kv_heads : {1U, 6U}) {
      const Problem problem({1, 1000, 1200, 6, kv_heads, 16, packed.mask(200), {.group = 6 / kv_heads}}, dtype);
      const Results one = run(problem, 1);
      for (const std::size_t threads : {2U, 5U}) {
        EXPECT_TRUE(same_bits(one, run(problem, threads)))
            << name(dtype) << ", " << threads << " threads, " << kv_heads << " K/V heads";
      }
    }
  }
}

/// A NaN or an infinity stays in its document.
void expect_hidden(const kernels::Mask& mask) {
  constexpr std::size_t kTokens = 700;
  constexpr std::size_t kHeadDim = 17;
  const Case shape{1, kTokens, kTokens, 1, 1, kHeadDim, mask, {}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Problem whole(shape, dtype);
    const Results expected = run(whole);
    for (const double broken : {std::nan(""), kInfinity}) {
      for (const std::size_t token : {1U, 94U, 95U, 98U, 99U, 297U, 699U}) {
        for (Array Problem::*operand : {&Problem::k, &Problem::v, &Problem::q, &Problem::d_o}) {
          Problem problem = whole;
          for (std::size_t c = 0; c < kHeadDim; ++c) (problem.*operand).set(token * kHeadDim + c, broken);
          const Results results = run(problem);
          for (std::size_t other = 0; other < kTokens; ++other) {
            if (shape.sees(std::max(token, other), std::min(token, other))) continue;
            for (std::size_t i = other * kHeadDim; i < (other + 1) * kHeadDim; ++i) {
              ASSERT_TRUE(results.o[i] == expected.o[i] && results.dq[i] == expected.dq[i] && results.dk[i] == expected.dk[i] &&
                          results.dv[i] == expected.dv[i])
                  << name(dtype) << ", " << token << " reaches " << other;
            }
          }
          EXPECT_TRUE(std::isnan(results.dq[token * kHeadDim])) << name(dtype) << ", " << token;
        }
      }
    }
  }
}

TEST_P(FlashDocuments, HideWhatIsNotFinite) { expect_hidden(Packed(1, 700, {95, 3, 1, 200}).mask()); }
TEST_P(FlashDocuments, HideWhatIsNotFiniteWhereTokensAreDealt) { expect_hidden(Dealt(1, 700, {95, 3, 1, 200}, 4).mask()); }

/// Returns the ticks of the forward and of the backward pass, which are at least one for each tile that was computed.
std::pair<int, int> ticks_of(const kernels::Mask& mask) {
  const Problem problem({1, 6000, 6000, 1, 1, 8, mask, {}}, DType::f32);
  Results results(problem);
  Bench bench;
  int ticks = 0;
  const auto count = [&] { ++ticks; };
  kernels::Compute on = bench.on();
  on.tick = count;
  kernels::flash_forward(on, problem.attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  const int forward = std::exchange(ticks, 0);
  kernels::flash_backward(on, problem.attention, results.dq.view(), results.dk.view(), results.dv.view(), problem.d_o.view(),
                          results.lse.view(), results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view());
  return {forward, ticks};
}

TEST(FlashDocumentsAtThisLevel, SkipTilesThatNoQuerySees) {
  const auto [all_forward, all_backward] = ticks_of(kernels::Mask::from_positions(0, 0));
  const auto [forward, backward] = ticks_of(Packed(1, 6000, {100}).mask());
  EXPECT_LT(5 * forward, all_forward);
  EXPECT_LT(4 * backward, all_backward);
}

/// Where keys and then queries have these documents, by name, and all keys lie before the queries.
class Named {
 public:
  Named(std::vector<std::uint32_t> keys, const std::vector<std::uint32_t>& queries)
      : keys_(keys.size()), names_(std::move(keys)) {
    names_.insert(names_.end(), queries.begin(), queries.end());
    for (auto name = names_.begin(); name != names_.end(); ++name)
      positions_.push_back(static_cast<std::uint32_t>(std::count(names_.begin(), name, *name)));
  }
  kernels::flash::Visibility visible() const {
    const kernels::Documents documents{.starts = names_.data(), .length = names_.size(), .positions = positions_.data()};
    return {kernels::Mask::from_positions(keys_, 0, 0, documents), keys_, 0};
  }

 private:
  std::size_t keys_;
  std::vector<std::uint32_t> names_;
  std::vector<std::uint32_t> positions_;
};

TEST(FlashDocumentsThatAreDealt, AreNotSoughtBetweenThoseOfQueries) {
  const Named apart({10, 10, 20, 20, 30, 30}, {5, 5, 40, 40});
  EXPECT_EQ(apart.visible().keys_of(0, 4, 0, 6).end, 0U);
  const auto none = apart.visible().queries_of(0, 6, 0, 4);
  EXPECT_EQ(none.begin, none.end);
  const Named some({10, 5, 20, 40, 30, 30}, {5, 5, 40, 40});
  const auto keys = some.visible().keys_of(0, 4, 0, 6);
  EXPECT_EQ(keys.begin, 1U);
  EXPECT_EQ(keys.end, 4U);
  const auto queries = some.visible().queries_of(2, 2, 0, 4);
  EXPECT_EQ(queries.begin, 2U);
  EXPECT_EQ(queries.end, 4U);
}

TEST(FlashDocumentsThatAreDealt, AreAllFoundHoweverManyTilesHave) {
  std::mt19937 random(8);
  for (const unsigned documents : {1U, 5U, 16U, 17U, 60U}) {
    const auto rows = [&](std::size_t count) {
      std::vector<std::uint32_t> names(count);
      for (std::size_t i = 0; i < count; ++i)
        names[i] = i > 0 && random() % 2 == 0 ? names[i - 1] : static_cast<std::uint32_t>(random() % documents);
      return names;
    };
    const std::size_t count = 50;
    const std::vector<std::uint32_t> of_keys = rows(count);
    const Named named(of_keys, rows(count));
    const kernels::flash::Visibility visible = named.visible();
    for (const std::size_t tile : {1U, 4U, 25U, 50U}) {
      for (std::size_t query = 0; query + tile <= count; query += tile) {
        for (std::size_t key = 0; key + tile <= count; key += tile) {
          const auto keys = visible.keys_of(query, tile, key, key + tile);
          const auto queries = visible.queries_of(key, tile, query, query + tile);
          for (std::size_t i = query; i < query + tile; ++i) {
            for (std::size_t j = key; j < key + tile; ++j) {
              if (!visible.sees(i, j)) continue;
              EXPECT_TRUE(keys.begin <= j && j < keys.end) << documents << ": query " << i << ", key " << j;
              EXPECT_TRUE(queries.begin <= i && i < queries.end) << documents << ": query " << i << ", key " << j;
            }
          }
        }
      }
    }
  }
}

TEST(FlashDocumentsAtThisLevel, MergeWithWhatOtherKeysGave) {
  const Packed packed(2, 90, {33, 20, 4, 60, 1});
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Problem problem({2, 40, 90, 2, 1, 8, packed.mask(50), {.group = 2}}, dtype);
    const Expected expected = naive(problem);
    Bench bench;
    std::vector<Results> parts;
    std::vector<ConstTensor> part_o;
    std::vector<ConstTensor> part_lse;
    const std::size_t starts[] = {0, 11, 37, 60, 90};
    for (std::size_t p = 0; p < 4; ++p) parts.emplace_back(problem, 2);
    for (std::size_t p = 0; p < 4; ++p) {
      const auto keys = [&](const ConstTensor& view) { return view.slice(1, starts[p], starts[p + 1] - starts[p]); };
      kernels::Attention attention = problem.attention;
      attention.mask = packed.mask(50, starts[p]);
      kernels::flash_forward(bench.on(), attention, parts[p].o.view(), parts[p].lse.view(), problem.q.view(),
                             keys(problem.k.view()), keys(problem.v.view()));
      part_o.push_back(parts[p].o.view());
      part_lse.push_back(parts[p].lse.view());
    }
    Results merged(problem);
    kernels::merge_attention(bench.on(), problem.attention.scale, merged.o.view(), merged.lse.view(), part_o, part_lse);
    EXPECT_LE(distance(merged.o, expected.o), tolerance(dtype));
    EXPECT_LE(distance(merged.lse, expected.lse), tolerance(dtype));
  }
}

TEST(FlashDocumentsAtThisLevel, NeedACausalMaskAndAStartForEachPosition) {
  const Packed packed(1, 10, {3});
  for (const auto& [query_start, key_start] : {std::pair<std::size_t, std::size_t>{7, 0}, {0, 7}}) {
    const Problem problem({1, 4, 4, 1, 1, 8, packed.mask(query_start, key_start), {}}, DType::f32);
    EXPECT_THROW(run(problem), std::invalid_argument);
  }
  Problem problem({1, 4, 4, 1, 1, 8, kernels::Mask::none(), {}}, DType::f32);
  problem.attention.mask.documents = packed.mask().documents;
  EXPECT_THROW(run(problem), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::flash_documents_kernel_test
