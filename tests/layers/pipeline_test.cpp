// Lists of tasks of a pipeline's stages, played against each other: every message that is received was sent, nobody waits for
// ever, and stages are idle for as long as the closed formula says.
#include "layers/schedules/pipeline.h"

#include "tests/layers/step_formulas.h"
#include "tests/support/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tsprun::detail::test::pipeline_test {
namespace {

using enum PipelineSchedule;
constexpr std::array kSchedules = {gpipe, one_forward_one_backward};

std::vector<TaskList> lists(PipelineSchedule schedule, std::size_t layers, std::size_t stages, std::size_t micro_batches) {
  std::vector<TaskList> all;
  for (std::size_t i = 0; i < stages; ++i)
    all.push_back(training_tasks(schedule, PipelineStage::of(layers, stages, i), micro_batches));
  return all;
}

/// What comes of stages that do their tasks as soon as they can. A layer takes `forward` and `backward` units of time, all else
/// takes none.
class Played {
 public:
  Played(const std::vector<TaskList>& lists, std::uint64_t forward, std::uint64_t backward)
      : forward_(forward), backward_(backward), stages(lists.size()) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < lists.size(); ++i) {
        while (stages[i].done < lists[i].size() && does(stages[i], lists[i][stages[i].done])) {
          ++stages[i].done;
          moved = true;
        }
      }
    }
    for (const OfStage& stage : stages) time = std::max(time, stage.clock);
  }

  struct OfStage {
    std::size_t done = 0;  // tasks
    std::uint64_t clock = 0;
    std::uint64_t busy = 0;
    std::size_t under_way = 0;  // micro-batches whose forward pass has begun and whose backward pass hasn't ended
    std::size_t most = 0;
  };

 private:
  bool does(OfStage& stage, const ModelTask& task) {
    const std::pair over{task.boundary, task.gradient};
    const auto message = std::tuple_cat(over, std::tuple(task.micro_batch));
    switch (task.kind) {
      case TaskKind::forward:
      case TaskKind::backward: {
        if (task.piece != Piece::layers) return true;
        const bool back = task.kind == TaskKind::backward;
        if (!back) stage.most = std::max(stage.most, ++stage.under_way);
        else --stage.under_way;
        stage.clock += task.layers * (back ? backward_ : forward_);
        stage.busy += task.layers * (back ? backward_ : forward_);
        return true;
      }
      case TaskKind::send:
        if (sent_[over] > taken_[over].size()) return false;
        if (!taken_[over].empty()) stage.clock = std::max(stage.clock, taken_[over].back());
        ++sent_[over];
        EXPECT_TRUE(waiting.emplace(message, stage.clock).second) << "sent twice: " << print({task});
        return true;
      case TaskKind::receive: {
        const auto found = waiting.find(message);
        if (found == waiting.end()) return false;
        stage.clock = std::max(stage.clock, found->second);
        waiting.erase(found);
        taken_[over].push_back(stage.clock);
        return true;
      }
      case TaskKind::reduce:
      case TaskKind::update: return true;
    }
    return false;
  }

  std::uint64_t forward_;
  std::uint64_t backward_;
  std::map<std::pair<std::size_t, bool>, std::size_t> sent_;
  std::map<std::pair<std::size_t, bool>, std::vector<std::uint64_t>> taken_;  // when

 public:
  std::vector<OfStage> stages;
  std::map<std::tuple<std::size_t, bool, std::size_t>, std::uint64_t> waiting;  // messages that nobody has taken yet
  std::uint64_t time = 0;
  std::size_t messages() const {
    std::size_t sum = 0;
    for (const auto& [over, times] : taken_) sum += times.size();
    return sum;
  }
};

TEST(Pipeline, StagesGoToTheEndAndAreIdleAsLongAsTheFormulaSays) {
  for (const auto& [forward, backward] : {std::pair<std::uint64_t, std::uint64_t>{1, 2}, {1, 1}, {5, 3}}) {
    for (std::size_t P = 1; P <= 5; ++P) {
      for (std::size_t M = 1; M <= 8; ++M) {
        for (const PipelineSchedule schedule : kSchedules) {
          const std::string where = fmt::format("{} stages, {} micro-batches, {}", P, M, schedule == gpipe ? "gpipe" : "1f1b");
          const std::vector<TaskList> all = lists(schedule, 2 * P, P, M);
          EXPECT_NO_THROW(check_pipeline(all, 2 * P, M)) << where;
          const Played played(all, forward, backward);
          EXPECT_TRUE(played.waiting.empty()) << where;
          EXPECT_EQ(played.messages(), 2 * M * (P - 1)) << where;
          const formulas::Fraction bubble = formulas::bubble(P, M);
          for (std::size_t i = 0; i < P; ++i) {
            const Played::OfStage& stage = played.stages[i];
            EXPECT_EQ(stage.done, all[i].size()) << where;
            EXPECT_EQ((played.time - stage.busy) * bubble.whole, played.time * bubble.part) << where;
            EXPECT_EQ(stage.most, schedule == gpipe ? M : formulas::under_way(P, M, i)) << where;
          }
        }
      }
    }
  }
}

TEST(Pipeline, GivesTheFirstStagesMoreLayers) {
  EXPECT_EQ(PipelineStage::of(8, 3, 0), (PipelineStage{.number = 0, .count = 3, .first_layer = 0, .layers = 3}));
  EXPECT_EQ(PipelineStage::of(8, 3, 1), (PipelineStage{.number = 1, .count = 3, .first_layer = 3, .layers = 3}));
  EXPECT_EQ(PipelineStage::of(8, 3, 2), (PipelineStage{.number = 2, .count = 3, .first_layer = 6, .layers = 2}));
  EXPECT_EQ(PipelineStage::of(8, 1, 0), PipelineStage::whole(8));
  EXPECT_EQ(refused_text([] { PipelineStage::of(3, 4, 0); }), "4 stages of 3 layers: each must have one; at most 3 work");
}

TEST(Pipeline, OfOneStageUnder1f1bIsNone) {
  EXPECT_EQ(training_tasks(one_forward_one_backward, PipelineStage::whole(3), 2), training_tasks(3, 2));
}

TEST(Pipeline, OfTwoStagesUnder1f1b) {
  const std::vector<TaskList> all = lists(one_forward_one_backward, 3, 2, 2);
  EXPECT_EQ(print(all[0]),
            "forward   micro-batch 0   embedding\n"
            "forward   micro-batch 0   layers 0 to 1\n"
            "send      micro-batch 0   residual over boundary 0\n"
            "forward   micro-batch 1   embedding\n"
            "forward   micro-batch 1   layers 0 to 1\n"
            "send      micro-batch 1   residual over boundary 0\n"
            "receive   micro-batch 0   gradient over boundary 0\n"
            "backward  micro-batch 0   layers 1 to 0\n"
            "backward  micro-batch 0   embedding\n"
            "receive   micro-batch 1   gradient over boundary 0\n"
            "backward  micro-batch 1   layers 1 to 0\n"
            "backward  micro-batch 1   embedding\n"
            "reduce\n"
            "update\n");
  EXPECT_EQ(print(all[1]).substr(0, print(all[1]).find("receive   micro-batch 1")),
            "receive   micro-batch 0   residual over boundary 0\n"
            "forward   micro-batch 0   layers 2 to 2\n"
            "forward   micro-batch 0   head\n"
            "backward  micro-batch 0   head\n"
            "backward  micro-batch 0   layers 2 to 2\n"
            "send      micro-batch 0   gradient over boundary 0\n");
}

/// Expects that a list is refused, and returns why.
std::string why_not(const std::vector<TaskList>& all, std::size_t layers, std::size_t micro_batches) {
  try {
    check_pipeline(all, layers, micro_batches);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

/// Each list is one that a stage could do: the first sends micro-batch 1 once micro-batch 0 has come back, the second waits for
/// both before it goes back.
TEST(Pipeline, OfStagesThatWouldWaitForEachOtherIsRefused) {
  std::vector<TaskList> all = {training_tasks(one_forward_one_backward, PipelineStage::of(2, 2, 0), 2),
                               training_tasks(gpipe, PipelineStage::of(2, 2, 1), 2)};
  EXPECT_NO_THROW(check_pipeline(all, 2, 2));
  std::rotate(all[0].begin() + 3, all[0].begin() + 6, all[0].begin() + 9);
  EXPECT_NO_THROW(check_training_tasks(all[0], PipelineStage::of(2, 2, 0), 2));
  EXPECT_EQ(why_not(all, 2, 2),
            "stages that wait for each other:\n"
            "stage 0: receive   micro-batch 0   gradient over boundary 0\n\n"
            "stage 1: receive   micro-batch 1   residual over boundary 0\n");
  EXPECT_LT(Played(all, 1, 1).stages[0].done, all[0].size());
}

TEST(Pipeline, OfStagesWithTasksElsewhereIsRefused) {
  const std::vector<TaskList> good = lists(one_forward_one_backward, 4, 2, 3);
  EXPECT_NO_THROW(check_pipeline(good, 4, 3));
  // Any two neighbours that change places; those of unlike micro-batches may, unless both go back.
  for (std::size_t stage = 0; stage < 2; ++stage) {
    for (std::size_t i = 0; i + 1 < good[stage].size(); ++i) {
      const ModelTask& one = good[stage][i];
      const ModelTask& other = good[stage][i + 1];
      if (one.micro_batch != other.micro_batch && !(one.is_backward() && other.is_backward())) continue;
      std::vector<TaskList> all = good;
      std::swap(all[stage][i], all[stage][i + 1]);
      EXPECT_TRUE(why_not(all, 4, 3).starts_with(fmt::format("stage {}: ", stage))) << print({one, other});
    }
    for (std::size_t i = 0; i < good[stage].size(); ++i) {
      std::vector<TaskList> all = good;
      all[stage].erase(all[stage].begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_TRUE(why_not(all, 4, 3).starts_with(fmt::format("stage {}: ", stage))) << print({good[stage][i]});
    }
  }
  for (const auto& wrong : {std::pair<std::size_t, std::size_t>{4, 2}, {4, 4}, {5, 3}}) why_not(good, wrong.first, wrong.second);
}

}  // namespace
}  // namespace tsprun::detail::test::pipeline_test
