#include "launcher/examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

struct Examples {
  std::string_view command;
  std::array<std::string_view, 2> lines;
};

constexpr auto kExamples = std::to_array<Examples>({
    {"train",
     {"tsprun -n 4 train --config nano --data book.txt --batch 8 --steps 700 --lr 3e-3 --save runs/book",
      "tsprun --layout tp=2,sp=2 --sp ring train --resume runs/book --data book.txt --steps 1400 --save runs/book"}},
    {"eval",
     {"tsprun -n 4 eval --model runs/book/step-000700 --data other.txt",
      "tsprun -n 2 --json eval.json eval --config nano --data book.txt --logits logits.safetensors"}},
    {"generate",
     {"tsprun -n 4 generate --model runs/book/step-000700 --prompt 'The ' --tokens 160 --temperature 0.6",
      "tsprun --layout tp=2 generate --config nano --prompt 'The ' --top-k 40 --seed 7"}},
    {"block",
     {"tsprun -n 4 block --config config.json --weights w.safetensors --input x.safetensors --output y.safetensors",
      "tsprun --layout tp=2 block --config c.json --weights w.st --input x.st --output y.st --backward --dtype f64"}},
    {"run", {"tsprun -n 4 run -- ./my_program arguments", "tsprun -n 4 --no-prefix --timeout 60 run -- python3 script.py"}},
    {"compare",
     {"tsprun compare --layouts 'tsp=4;tp=4;tp=2,sp=2' --config micro --data book.txt",
      "tsprun compare --layouts 'tsp=2;tp=2' --config micro --seqs 256,512,1024 --data book.txt --csv measured.csv"}},
    {"bench",
     {"tsprun -n 4 bench all_reduce,all_gather --sizes 1K,1M,16M", "tsprun -n 2 --intra tcp --json report.json bench pingpong"}},
    {"plan",
     {"tsprun plan --config paper-7b --dtype bf16 --seq 32768 -n 8",
      "tsprun plan --search --gpus 64 --machine mi300x --config paper-7b --dtype bf16 --seq 131072"}},
    {"doctor", {"tsprun doctor", "tsprun --json doctor.json doctor"}},
    {"status", {"tsprun status 4711", "tsprun status $(pgrep -o tsprun)"}},
});

constexpr std::size_t kColumns = 98;

/// Returns words in lines of at most kColumns, indented by two.
std::string wrapped(const std::vector<std::string>& words) {
  std::string text;
  std::size_t column = kColumns;
  for (const std::string& word : words) {
    if (column + 1 + word.size() > kColumns) {
      text += text.empty() ? "  " : "\n  ";
      column = 2;
    } else {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

}  // namespace

std::span<const std::string_view> examples_of(std::string_view command) {
  const auto found =
      std::find_if(kExamples.begin(), kExamples.end(), [&](const Examples& each) { return each.command == command; });
  return found == kExamples.end() ? std::span<const std::string_view>() : std::span(found->lines);
}

std::string help_footer(const CLI::App& app, std::string_view command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option != app.get_help_ptr() && option->get_name() != "--version") names.push_back(option->get_name(false, true));
  }
  std::string text = "Examples:\n";
  for (const std::string_view line : examples_of(command)) text += fmt::format("  {}\n", line);
  return text + fmt::format("\nGlobal options, before or after the command (`tsprun --help` explains them):\n{}", wrapped(names));
}

}  // namespace tsprun::detail::launcher
