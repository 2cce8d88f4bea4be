// Table of other programs' options.
#include "launcher/suggest.h"

#include "transport/suggest.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

// X(another program's spelling, what is written here)
constexpr std::array<std::pair<std::string_view, std::string_view>, 37> kElsewhere = {{
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
    {"output-dir", "--save DIR"},
    {"load", "--resume DIR"},
    {"minbytes", "--sizes, such as --sizes 1K,1M,16M"},
    {"maxbytes", "--sizes, such as --sizes 1K,1M,16M"},
    {"model-name-or-path", "--model DIR"},
}};

}  // namespace

std::string_view spelling_here(std::string_view option) {
  const std::string word = plain_word(option.substr(0, option.find('=')));
  const auto found = std::find_if(kElsewhere.begin(), kElsewhere.end(), [&](const auto& each) { return each.first == word; });
  return found != kElsewhere.end() ? found->second : std::string_view();
}

}  // namespace tsprun::detail::launcher
