// Command lines that are refused: exit code 2, one line that names what is wrong, no rank started.
#include "launcher/cli.h"

#include "launcher/commands/command.h"
#include "launcher/suggest.h"
#include "launcher/table.h"
#include "transport/shm/node_memory.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::cli_test {
namespace {

/// Sets a variable of the environment, or takes it away (null), until the object's end.
class EnvironmentVariable {
 public:
  EnvironmentVariable(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str()); before != nullptr) before_ = before;
    set(value);
  }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;
  ~EnvironmentVariable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const {
    if (value != nullptr) ::setenv(name_.c_str(), value, 1);
    else ::unsetenv(name_.c_str());
  }
  std::string name_;
  std::optional<std::string> before_;
};

struct Answer {
  int code;
  std::string text;
};

Answer ask(std::vector<const char*> words) {
  words.insert(words.begin(), "tsprun");
  testing::internal::CaptureStderr();
  const int code = tsprun(static_cast<int>(words.size()), words.data());
  return {code, testing::internal::GetCapturedStderr()};
}

void expect_refused(const std::vector<const char*>& words, const std::string& part) {
  const Answer answer = ask(words);
  EXPECT_EQ(answer.code, 2) << answer.text;
  EXPECT_NE(answer.text.find(part), std::string::npos) << answer.text;
  EXPECT_EQ(std::count(answer.text.begin(), answer.text.end(), '\n'), 1) << answer.text;
}

TEST(CommandLine, WhatIsUnknownIsNamed) {
  expect_refused({}, "no command");
  expect_refused({"frobnicate"}, "unknown command frobnicate");
  expect_refused({"--warp", "9", "doctor"}, "unknown option --warp");
  expect_refused({"run", "--warp", "9", "--", "true"}, "unknown option --warp");
  expect_refused({"bench", "frobnicate"}, "frobnicate");
}

TEST(CommandLine, WhatIsNearlyKnownIsProposed) {
  expect_refused({"trian"}, "unknown command trian (did you mean train?)");
  expect_refused({"--dtype", "f64", "eval", "--config", "nano"},
                 "--dtype: it is an option of eval and stands behind it: tsprun eval --dtype TYPE");
  expect_refused({"--dtype=f64", "eval", "--config", "nano"}, "--dtype=f64: it is an option of eval");
  expect_refused({"--dtype", "f64"}, "--dtype: it is an option of train, eval");
  expect_refused({"--layuot", "tsp=4", "doctor"}, "unknown option --layuot (did you mean --layout?)");
  expect_refused({"train", "--step", "4"}, "unknown option --step (did you mean --steps?)");
  expect_refused({"-json", "x", "doctor"}, "unknown option -json (did you mean --json?)");
  expect_refused({"bench", "all", "--steps", "4"}, "unknown option --steps for bench: it is one of train, compare");
  expect_refused({"--layout", "tps=4", "doctor"}, "did you mean tsp?");
  expect_refused({"bench", "allreduce"}, "there is no operation \"allreduce\" (did you mean all_reduce?)");
  expect_refused({"bench", "all", "--stpes", "4"}, "unknown option --stpes (did you mean --steps? It is one of train, compare");
  expect_refused({"--dtpye", "f64"}, "unknown option --dtpye (did you mean --dtype? It is one of train, eval");
  expect_refused({"train", "--lerning-rate", "4"}, "unknown option --lerning-rate: for --learning-rate tsprun takes --lr RATE");
  expect_refused({"help"}, "tsprun --help");
}

TEST(CommandLine, WhatOthersCallItIsTranslated) {
  for (const char* option : {"-np", "--nproc-per-node", "--nproc_per_node"})
    expect_refused({option, "4", "run", "--", "true"}, std::string("unknown option ") + option + ": tsprun takes -n N");
  expect_refused({"--nproc-per-node=4", "run", "--", "true"}, "tsprun takes -n N");
  for (const auto& [option, here] : {std::pair{"--eval-interval", "--eval-every K beside --eval-data FILE"},
                                     {"--validation-file", "--eval-data FILE"},
                                     {"--grad-accum", "--micro-batches M"},
                                     {"--gradient-accumulation-steps", "--micro-batches M"},
                                     {"--global-batch-size", "--batch B"},
                                     {"--micro-batch-size", "--micro-batches M"},
                                     {"--learning-rate", "--lr RATE"},
                                     {"--lr-scheduler", "--lr-schedule constant"},
                                     {"--output-dir", "--save DIR"},
                                     {"--num-epochs", "--epochs E"},
                                     {"--max-steps", "--steps N"},
                                     {"--log-interval", "--log-every N"},
                                     {"--tensor-parallel-size", "--layout tp=N"},
                                     {"--context-parallel-size", "--layout sp=N"},
                                     {"--bf16", "--dtype bf16"}})
    expect_refused({"train", option, "8"}, fmt::format("unknown option {}: tsprun takes {}", option, here));
  expect_refused({"-nodes", "2", "doctor"}, "unknown option -nodes (did you mean --nodes?)");
  // As a value it is none of our business.
  EXPECT_EQ(ask({"generate", "--prompt", "-np", "--config", "nowhere"}).text.find("-np"), std::string::npos);
}

TEST(CommandLine, EvaluationsOfATrainingNeedDataAndALayoutThatEvaluates) {
  expect_refused({"train", "--config", "nano", "--data", "/etc/passwd", "--eval-every", "5"},
                 "--eval-every 5: says when, not what; give --eval-data FILE");
  expect_refused({"train", "--config", "nano", "--data", "/etc/passwd", "--seq", "8", "--eval-data", "/nowhere"},
                 "--eval-data: /nowhere");
  expect_refused(
      {"train", "--layout", "pp=2", "--config", "nano", "--data", "/etc/passwd", "--seq", "8", "--eval-data", "/etc/passwd"},
      "--eval-data /etc/passwd: pp=2: pipelines train");
}

TEST(CommandLine, EpochsAndStepsAreNotBothGiven) {
  const std::vector<const char*> train = {"train", "--config", "nano", "--data", "/etc/passwd", "--seq", "8", "--epochs"};
  const auto refused = [&](const std::vector<const char*>& more, const std::string& text) {
    std::vector<const char*> words = train;
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(words, text);
  };
  refused({"2", "--steps", "50"}, "--steps 50: the run counts epochs, 2; leave it out, or give --epochs 0");
  refused({"-1"}, "--epochs -1: numbers from 0");
  refused({"1", "--warmup", "1000000", "--lr-schedule", "linear"}, "--lr-schedule linear: --warmup 1000000 leaves none");
}

TEST(CommandLine, RatesThatDoNotFallAreRefused) {
  const auto refused = [](const std::vector<const char*>& more, const std::string& text) {
    std::vector<const char*> words = {"train", "--config", "nano", "--data", "/etc/passwd"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(words, text);
  };
  refused({"--lr-schedule", "step"}, "--lr-schedule step: constant, linear, cosine and wsd work");
  refused({"--min-lr", "1e-5"}, "--min-lr 1e-5: has no effect with --lr-schedule constant; try --lr-schedule cosine");
  refused({"--decay-steps", "9"}, "--decay-steps 9: has no effect with --lr-schedule constant");
  refused({"--lr-schedule", "cosine", "--warmup", "100"},
          "--lr-schedule cosine: --warmup 100 leaves none of the 100 steps for the rate to fall; try --warmup 10");
  refused({"--lr-schedule", "wsd", "--warmup", "30", "--decay-steps", "71"},
          "--decay-steps 71: 70 steps come after the warm-up; try --decay-steps 70");
  refused({"--lr-schedule", "linear", "--min-lr", "1"}, "--min-lr 1: above --lr 0.0003, from which the rate falls");
}

TEST(CommandLine, LinesOfStepsAreNotAskedForAndForbidden) {
  expect_refused({"--quiet", "train", "--config", "nano", "--log-every", "5"}, "--log-every 5: --quiet prints no lines of steps");
  expect_refused({"train", "--config", "nano", "--log-every", "0"}, "--log-every 0");
}

// A hint that names an option of yesterday would send users in a circle.
TEST(CommandLine, WhatIsProposedInsteadExists) {
  std::vector<std::string> known;
  GlobalOptions global;
  const OptionTable global_table(global);
  const auto take = [&known](const OptionTable& table) {
    for (const OptionRow& row : table.rows()) known.push_back(row.names);
  };
  take(global_table);
  for (const auto& command : all_commands()) {
    OptionTable table;
    command->declare(table);
    take(table);
  }
  const auto exists = [&known](const std::string& option) {
    return std::ranges::any_of(
        known, [&](const std::string& names) { return ("," + names + ",").find("," + option + ",") != std::string::npos; });
  };
  ASSERT_TRUE(exists("--ranks"));
  for (const auto& [elsewhere, here] : spellings_elsewhere()) {
    const std::string text(here);
    for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
      const std::string option = text.substr(at, text.find_first_of(" ,;:`)", at) - at);
      EXPECT_TRUE(exists(option)) << elsewhere << ": " << text;
    }
  }
}

TEST(CommandLine, ALastOptionWithoutItsValueIsNamed) {
  expect_refused({"-n"}, "-n: its value is missing; write -n N");
  expect_refused({"train", "--steps"}, "--steps: its value is missing; write --steps N");
  expect_refused({"-n", "train"}, "-n: its value is missing before train; write -n N train");
  expect_refused({"--json", "doctor", "--verify"}, "--json: its value is missing before doctor; write --json FILE doctor");
}

TEST(CommandLine, CommandsSayWhatIsMissingOrTooMuchInSentences) {
  expect_refused({"bench"}, "bench: OP[,OP...]|all is missing; `tsprun bench --help` has examples");
  expect_refused({"block"}, "block: --config NAME|FILE is missing");
  expect_refused({"train", "--seq", "1", "--seq", "2"}, "--seq: given 2 times (1, 2); give it once");
  expect_refused({"--json", "a", "doctor", "--json", "b"}, "--json: given 2 times (a, b); give it once");
  expect_refused({"doctor", "--json"}, "--json: its value is missing; write --json FILE");
  expect_refused({"--json", "--trace", "x", "doctor"}, "--json: its value is missing; write --json FILE (or --json=--trace");
  expect_refused({"--verify=maybe", "doctor"}, "--verify=maybe: it takes no value; write --verify alone");
  expect_refused({"bench", "all", "--min-time", "soon"}, "--min-time soon: not a number; numbers from 0 to 3600 work; try 0.3");
}

TEST(CommandLine, BenchTakesTheSizesAndRanksOfNcclTests) {
  expect_refused({"bench", "pingpong", "-g", "1", "-b", "8", "-e", "64", "-f", "2"}, "bench pingpong: needs two ranks; try -g 2");
  expect_refused({"bench", "all", "-n", "2", "-b", "8", "-e", "1T"}, "try -e ");
  expect_refused({"bench", "all", "-g", "2", "-n", "2"}, "-g 2 and -n 2: they say the same; give one of them");
  expect_refused({"bench", "all", "-g", "0"}, "-g 0: 1 to 1024 work; try 1");
  expect_refused({"-n", "2", "bench", "all", "-b", "64M"},
                 "-b 64M: more than -e 32M, the last size if none is given; try -e 64M");
  expect_refused({"-n", "2", "bench", "all", "-e", "1K"}, "-e 1K: less than -b 32M; try -e 32M");
  expect_refused({"-n", "2", "bench", "all", "-b", "0"}, "-b 0: no bytes; try -b 8");
  expect_refused({"-n", "2", "bench", "all", "-f", "1"}, "-f 1: 2 to 1048576 work");
  expect_refused({"-n", "2", "bench", "all", "-f", "4", "--sizes", "8"}, "-f 4: --sizes 8 lists the sizes; give one of them");
  expect_refused({"-n", "2", "bench", "all_gather", "-b", "1", "-e", "4"},
                 "-e 4: too small to give each of 2 ranks an element of f32; try -e 8");
}

TEST(CommandLine, OptionsThatWouldChangeNothingAreRefused) {
  expect_refused({"-n", "2", "bench", "all_gather,pingpong", "--op", "max"},
                 "--op max: bench all_gather,pingpong sums nothing; leave it out");
  for (const char* option : {"--min-time", "--max-time"}) {
    expect_refused({"bench", "all_gather", "--iters", "5", option, "1"},
                   std::string(option) + " 1: --iters 5 says how long a row takes; give one of them");
  }
  expect_refused({"bench", "all_gather", "--min-time", "5"}, "--min-time 5: --max-time 2 ends a row before; try --max-time 5");
  for (const char* command : {"train", "eval", "generate", "compare", "plan"}) {
    std::vector<const char*> words = {command, "--config", "nano", "--no-checksum"};
    if (std::string(command) == "compare") words.insert(words.end(), {"--layouts", "tsp=2"});
    expect_refused(words, "--no-checksum: it spares --model DIR the check against its manifest, and there is no --model");
  }
  expect_refused({"train", "--config", "nano", "--save-within", "5"},
                 "--save-within 5: a signal waits for a last checkpoint, and none is written; give --save DIR");
  for (const auto& [option, value] : {std::pair{"--top-k", "1"}, {"--top-p", "0.5"}}) {
    expect_refused(
        {"generate", "--config", "nano", "--prompt", "a", "--temperature", "0", option, value},
        fmt::format("{} {}: --temperature 0 draws nothing, but takes the likeliest token; leave one of them out", option, value));
  }
}

/// A file in the tests' folder with some content; removed with the object.
struct KeptFile {
  explicit KeptFile(const std::string& name)
      : path(testing::TempDir() + "tsprun_cli_" + std::to_string(::getpid()) + "_" + name) {
    std::ofstream(path) << "precious";
  }
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;
  ~KeptFile() { std::remove(path.c_str()); }
  std::string content() const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path;
};

TEST(CommandLine, ThereIsNoBoardOfRanksThatArePlayed) {
  // As phantoms and players have it: nobody's job is described there.
  const shm::NodeMemory memory = shm::NodeMemory::create_memfd({.heap_bytes = 1 << 20, .world_size = 2});
  const std::string pid = std::to_string(::getpid());
  expect_refused({"status", pid.c_str()}, "status " + pid + ": this process runs no ranks, but plays them");
}

TEST(CommandLine, AFileIsOneOutputAndNoInput) {
  const KeptFile file("precious");
  const char* path = file.path.c_str();
  const std::string same = testing::TempDir() + "./tsprun_cli_" + std::to_string(::getpid()) + "_precious";
  expect_refused({"--json", path, "--trace", same.c_str(), "train", "--config", "nano", "--data", "x"},
                 "one would overwrite the other; name two files");
  expect_refused({"--json", "/tmp/new", "--trace", "/tmp/./new", "train", "--config", "nano", "--data", "x"},
                 "--json /tmp/new and --trace /tmp/./new: one would overwrite the other");
  expect_refused({"--json", path, "train", "--config", "nano", "--data", path}, "the command reads that file (--data ");
  expect_refused({"--json", "-", "--trace", "-", "train", "--config", "nano", "--data", "x"}, "--json - and --trace -");
  expect_refused({"eval", "--config", "nano", "--data", "x", "--logits", "-"}, "--logits -: all ranks write into it at once");
  EXPECT_EQ(file.content(), "precious");
}

TEST(CommandLine, ImpossibleRequestsAreRefused) {
  expect_refused({"-n", "0", "run", "--", "true"}, "-n 0");
  expect_refused({"-n", "100000", "run", "--", "true"}, "-n 100000");
  expect_refused({"-n", "6", "--layout", "tsp=4", "run", "--", "true"}, "--layout tsp=4");
  expect_refused({"run", "--", "no-such-program-anywhere"}, "no-such-program-anywhere: no such program in PATH");
  expect_refused({"run", "--", "./no/such/program"}, "run -- ./no/such/program: No such file or directory");
  expect_refused({"run", "--", "/"}, "run -- /: it is no file");
  expect_refused({"run", "--", "/etc/passwd"},
                 "run -- /etc/passwd: Permission denied: it isn't executable; try chmod +x /etc/passwd");
  expect_refused({"run", "--", "/etc/passwd/x"}, "run -- /etc/passwd/x: Not a directory");
  expect_refused({"run", "--", ""}, "run -- : an empty name");
  expect_refused({"run"}, "no program");
  expect_refused({"run", "true"}, "write -- before the program");
  expect_refused({"doctor", "--", "true"}, "only `run`");
  expect_refused({"-n", "4", "doctor"}, "-n 4: doctor has no ranks; leave it out");
  expect_refused({"--layout", "tp=2", "status", "1"}, "--layout tp=2: status has no ranks; leave it out");
  expect_refused({"--link-gbps", "2", "plan", "--config", "nano"}, "--link-gbps 2: plan has no ranks; leave it out");
  expect_refused({"plan", "--config", "nano", "--verify"}, "--verify: plan has no ranks; leave it out");
  expect_refused({"plan", "--config", "nano", "-n", "2", "--inter", "tcp"}, "--inter tcp: a plan knows no network");
  expect_refused({"status", "1", "--timeout", "3"}, "--timeout 3: status has no ranks; leave it out");
  expect_refused({"calibrate", "--layouts", "tsp=2", "--config", "nano", "--nodes", "2"}, "--nodes 2: calibrate measures");
  expect_refused({"calibrate", "--layouts", "tsp=2", "--config", "nano", "--intra", "tcp"}, "--intra tcp: calibrate measures");
  expect_refused({"compare", "--layouts", "tsp=2", "--config", "nano", "--forward", "--recompute", "full"},
                 "--recompute full: a");
  expect_refused({"--link-gbps", "0", "bench", "pingpong"}, "--link-gbps 0: numbers above 0 to 1000000 work; try 0.5");
  expect_refused({"--json", "/no/such/folder/report.json", "doctor"}, "--json /no/such/folder/report.json");
  expect_refused({"status", "1x"}, "status 1x");
}

// An unset shell variable in quotes must not silently drop a budget.
TEST(CommandLine, EmptyValuesAreRefusedByName) {
  expect_refused({"-n", "", "run", "--", "true"}, "-n: an empty value");
  for (const char* option :
       {"--layout",       "--nodes",   "--nnodes", "--node-rank", "--rendezvous", "--threads",     "--bind",
        "--mem-per-rank", "--timeout", "--json",   "--trace",     "--rdma",       "--secret-file", "--fault",
        "--intra",        "--inter",   "--tls",    "--sp",        "--tp",         "--log-level",   "--gemm"}) {
    const std::string complaint = std::string(option) + ": an empty value";
    expect_refused({option, "", "run", "--", "true"}, complaint);
    expect_refused({"doctor", option, ""}, complaint);
    const std::string assigned = std::string(option) + "=";
    expect_refused({assigned.c_str(), "run", "--", "true"}, complaint);
  }
  expect_refused({"bench", ""}, "op: an empty value");
  expect_refused({"bench", "all", "--sizes", ""}, "--sizes: an empty value");
  expect_refused({"train", "--config", "nano", "--data", "/dev/null", "--resume", ""}, "--resume: an empty value");
}

// Every command has them, those without ranks too: what is wrong in the environment is wrong for the next job.
TEST(CommandLine, VariablesThatRanksWouldRefuseAreRefusedBefore) {
  for (const auto& [variable, value, known] :
       {std::tuple{"TSP_ALGORITHMS", "all_reduce=foo", "it has one_shot, rooted"},
        std::tuple{"TSP_GEMM", "foo", "auto, tsprun and openblas work"},
        std::tuple{"TSP_KERNELS", "foo", "baseline, avx2, avx512, avx512_bf16 and amx_bf16 work"}}) {
    ::setenv(variable, value, 1);
    const std::string name = std::string(variable) + "=" + value;
    expect_refused({"-n", "2", "bench", "all_reduce"}, name);
    expect_refused({"run", "--", "true"}, name);
    expect_refused({"doctor"}, known);
    ::unsetenv(variable);
  }
}

TEST(CommandLine, GlobalOptionsStandBeforeOrAfterTheCommand) {
  expect_refused({"run", "-n", "0", "--", "true"}, "-n 0");
  expect_refused({"--timeout", "0", "run", "--", "true"}, "--timeout 0");
  expect_refused({"run", "--timeout", "0", "--", "true"}, "--timeout 0");
}

/// `columns`: of the terminal; null: nobody says.
std::string help_of(const char* command, const char* columns = nullptr) {
  const EnvironmentVariable width("COLUMNS", columns);
  testing::internal::CaptureStdout();
  const std::array<const char*, 3> words = {"tsprun", command, "--help"};
  EXPECT_EQ(tsprun(static_cast<int>(words.size()), words.data()), 0);
  return testing::internal::GetCapturedStdout();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Returns the words of a text in their order, without what only breaks lines.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    if (word != "\\") words.push_back(word);
  }
  return words;
}

TEST(CommandLine, HelpFitsTheTerminalAndBreaksNoWord) {
  std::vector<std::string> commands = {"--quiet"};  // tsprun's own help
  for (const auto& command : all_commands()) commands.push_back(command->facts().name);
  for (const std::string& command : commands) {
    const std::string whole = help_of(command.c_str(), "100000");
    for (const auto& [columns, most] :
         {std::pair{static_cast<const char*>(nullptr), 80U}, {"60", 60U}, {"80", 80U}, {"132", 132U}}) {
      const std::string help = help_of(command.c_str(), columns);
      for (const std::string& line : lines_of(help)) EXPECT_LE(text_columns(line), most) << command << ": " << line;
      EXPECT_EQ(words_of(help), words_of(whole)) << command;
    }
  }
}

TEST(CommandLine, TheUsageOfRunNamesTheProgram) {
  EXPECT_NE(help_of("run").find("run [OPTIONS] -- PROGRAM [ARGUMENT...]\n"), std::string::npos);
}

TEST(CommandLine, BenchMeasuresFromEightBytesTo64MiB) { EXPECT_NE(help_of("bench").find("8,1K,64K,1M,64M"), std::string::npos); }

// Parsed, not run: what they name needn't be there.
TEST(CommandLine, EveryCommandsHelpHasExamplesThatParseAndNamesTheGlobalOptions) {
  for (const auto& command : all_commands()) {
    const CommandFacts facts = command->facts();
    const std::string help = help_of(facts.name.c_str(), "200");
    for (const std::string_view example : facts.examples) {
      EXPECT_NE(help.find("  " + std::string(example) + "\n"), std::string::npos) << help;
      EXPECT_LE(example.size(), 110U) << example;
      CLI::App app;
      GlobalOptions global;
      OptionTable global_table(global);
      global_table.bind(app);
      CLI::App* sub = app.add_subcommand(facts.name);
      sub->fallthrough();
      OptionTable table;
      command->declare(table);
      table.bind(*sub);
      std::string line(example.substr(0, example.find(" -- ")));
      line.erase(0, std::string("tsprun ").size());
      if (const std::size_t shell = line.find("$("); shell != std::string::npos) line.replace(shell, std::string::npos, "4711");
      EXPECT_NO_THROW(app.parse(line)) << example;
      EXPECT_NO_THROW(global_table.parse()) << example;
      EXPECT_NO_THROW(table.parse()) << example;
    }
    for (const char* option : {"--layout", "--json", "--timeout", "-q,--quiet"})
      EXPECT_NE(help.find(option, help.find("Global options")), std::string::npos) << facts.name << " doesn't name " << option;
  }
}

TEST(CommandLine, ARefusalIsInTheReport) {
  const std::string path = testing::TempDir() + "tsprun_refusal_" + std::to_string(::getpid()) + ".json";
  expect_refused({"--json", path.c_str(), "-n", "0", "run", "--", "true"}, "-n 0");
  std::ifstream file(path);
  const auto report = nlohmann::json::parse(file);
  std::remove(path.c_str());
  EXPECT_EQ(report["command"], "run");
  EXPECT_EQ(report["failure"]["kind"], "refused");
  EXPECT_NE(report["failure"]["detail"].get<std::string>().find("-n 0"), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::launcher::cli_test
