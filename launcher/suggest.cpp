// Table of other programs' options.
#include "launcher/suggest.h"

#include "transport/suggest.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

/// Names what there is for options with which others say how many sequences are computed at once.
constexpr std::string_view kMicroBatches = "--micro-batches M, the parts of each data rank's share of --batch B";
/// Names what there is for options with which others choose how the learning rate falls.
constexpr std::string_view kRates = "--lr-schedule constant, linear, cosine or wsd";
/// Names what there is for options with which others evaluate during training.
constexpr std::string_view kEvaluation = "--eval-every K beside --eval-data FILE";

// {another program's spelling, what is written here}
constexpr auto kElsewhere = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"np", "-n N, the ranks in all"},
    {"nproc", "-n N, the ranks in all"},
    {"nprocs", "-n N, the ranks in all"},
    {"nproc-per-node", "-n N, the ranks in all, over all nodes"},
    {"npernode", "-n N, the ranks in all, over all nodes"},
    {"ppn", "-n N, the ranks in all, over all nodes"},
    {"ntasks", "-n N, the ranks in all"},
    {"ntasks-per-node", "-n N, the ranks in all, over all nodes"},
    {"world-size", "-n N, the ranks in all"},
    {"num-processes", "-n N, the ranks in all"},
    {"ngpus", "-n N, the ranks in all (for `plan --search`: --gpus N)"},
    {"machine-rank", "--node-rank I"},
    {"master-addr", "--rendezvous HOST:PORT, an address of node 0"},
    {"master-port", "--rendezvous HOST:PORT, an address of node 0"},
    {"rdzv-endpoint", "--rendezvous HOST:PORT, an address of node 0"},
    {"hostfile", "one tsprun on each machine: --nnodes K --node-rank I --rendezvous HOST:PORT"},
    {"host", "one tsprun on each machine: --nnodes K --node-rank I --rendezvous HOST:PORT"},
    {"bind-to", "--bind core or --bind none"},
    {"tensor-parallel-size", "--layout tp=N"},
    {"tensor-model-parallel-size", "--layout tp=N"},
    {"context-parallel-size", "--layout sp=N"},
    {"batch-size", "--batch B, the sequences in all"},
    {"global-batch-size", "--batch B, the sequences in all"},
    {"seq-len", "--seq S"},
    {"seq-length", "--seq S"},
    {"sequence-length", "--seq S"},
    {"block-size", "--seq S"},
    {"learning-rate", "--lr RATE"},
    {"max-steps", "--steps N"},
    {"train-iters", "--steps N"},
    {"max-iters", "--steps N"},
    {"max-new-tokens", "--tokens N"},
    {"temp", "--temperature T"},
    {"repeat-penalty", "--repetition-penalty R"},
    {"do-sample", "--temperature T, above 0"},
    {"reverse-prompt", "--stop TEXT"},
    {"stop-strings", "--stop TEXT"},
    {"stop-string", "--stop TEXT"},
    {"stop-sequences", "--stop TEXT"},
    {"output-dir", "--save DIR"},
    {"tp-size", "--layout tp=N"},
    {"cp-size", "--layout sp=N"},
    {"data-parallel-size", "--layout dp=N"},
    {"sequence-parallel", "--layout tp=N --tp sequence"},
    {"zero1", "--layout dp=N --dp zero1"},
    {"zero2", "--layout dp=N --dp zero1, which cuts optimizer states, or --dp zero3, which cuts all"},
    {"zero3", "--layout dp=N --dp zero3"},
    {"pp-size", "--layout pp=N"},
    {"pipeline-parallel-size", "--layout pp=N"},
    {"pipeline-model-parallel-size", "--layout pp=N"},
    {"use-distributed-optimizer", "--layout dp=N --dp zero1"},
    {"fsdp", "--layout dp=N --dp zero3"},
    {"hsdp", "--layout dp=R,shard=K --dp zero3"},
    {"micro-batch-size", kMicroBatches},
    {"per-device-train-batch-size", "--batch B, the sequences of all ranks in a step"},
    {"grad-accum", kMicroBatches},
    {"grad-accumulation-steps", kMicroBatches},
    {"gradient-accumulation-steps", kMicroBatches},
    {"lr-scheduler", kRates},
    {"lr-scheduler-type", kRates},
    {"lr-decay-style", kRates},
    {"lr-warmup-steps", "--warmup N"},
    {"warmup-steps", "--warmup N"},
    {"lr-warmup-iters", "--warmup N"},
    {"lr-decay-iters", "--decay-steps N"},
    {"lr-wsd-decay-iters", "--decay-steps N"},
    {"min-learning-rate", "--min-lr RATE"},
    {"num-epochs", "--epochs E"},
    {"num-train-epochs", "--epochs E"},
    {"eval-interval", kEvaluation},
    {"eval-steps", kEvaluation},
    {"valid-data-path", "--eval-data FILE"},
    {"validation-file", "--eval-data FILE"},
    {"save-interval", "--save-every K"},
    {"save-steps", "--save-every K"},
    {"log-interval", "--log-every N"},
    {"logging-steps", "--log-every N"},
    {"bf16", "--dtype bf16"},
    {"fp16", "--dtype bf16, f32 or f64"},
    {"fp32", "--dtype f32"},
    {"load", "--resume DIR"},
    {"stepbytes", "-f N: each size is N times the one before"},
    {"model-name-or-path", "--model DIR"},
});

}  // namespace

std::string_view spelling_here(std::string_view option) {
  const std::string word = plain_word(option.substr(0, option.find('=')));
  const auto found = std::find_if(kElsewhere.begin(), kElsewhere.end(), [&](const auto& each) { return each.first == word; });
  return found != kElsewhere.end() ? found->second : std::string_view();
}

std::span<const std::pair<std::string_view, std::string_view>> spellings_elsewhere() { return kElsewhere; }

}  // namespace tsprun::detail::launcher
