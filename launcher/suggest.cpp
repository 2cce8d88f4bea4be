#include "launcher/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace tsprun::launcher {

namespace {

/// Returns a word in the form in which words are compared: without leading dashes, in lower case, joined by '-'.
std::string plain(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string result(word);
  for (char& letter : result) letter = letter == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return result;
}

/// Returns how many letters may be wrong. Very short words differ by one letter whatever they mean; of long ones a third may be
/// wrong, but no more than three letters.
std::size_t tolerated(std::size_t length) { return length < 3 ? 0 : std::clamp<std::size_t>(length / 3, 1, 3); }

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

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the dynamic programming table: the one before last, the last, this one.
  std::array<std::vector<std::size_t>, 3> rows;
  rows.fill(std::vector<std::size_t>(b.size() + 1));
  for (std::size_t j = 0; j <= b.size(); ++j) rows[2][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    rows[2][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = rows[1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[2][j] = std::min({rows[1][j] + 1, rows[2][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
    }
  }
  return rows[2][b.size()];
}

std::string nearest_word(std::string_view typed, std::span<const std::string> known) {
  const std::string word = plain(typed.substr(0, typed.find('=')));
  if (word.empty()) return {};
  const std::string* nearest = nullptr;
  std::pair<std::size_t, std::size_t> best{tolerated(word.size()) + 1, 0};
  for (const std::string& each : known) {
    const std::string other = plain(each);
    // Among equally near words prefer one of equal length: letters are swapped more often than they are left out.
    const std::size_t longer = std::max(other.size(), word.size());
    const std::pair<std::size_t, std::size_t> far{edit_distance(word, other), longer - std::min(other.size(), word.size())};
    if (far >= best || (far.first > tolerated(word.size()))) continue;
    best = far;
    nearest = &each;
  }
  return nearest != nullptr ? *nearest : std::string();
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> known) {
  const std::string word = nearest_word(typed, known);
  return word.empty() ? std::string() : fmt::format("; did you mean {}?", word);
}

std::string_view spelling_here(std::string_view option) {
  const std::string word = plain(option.substr(0, option.find('=')));
  const auto found = std::find_if(kElsewhere.begin(), kElsewhere.end(), [&](const auto& each) { return each.first == word; });
  return found != kElsewhere.end() ? found->second : std::string_view();
}

}  // namespace tsprun::launcher
