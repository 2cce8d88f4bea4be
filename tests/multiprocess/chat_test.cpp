// `tsprun chat`: its answers are what `generate` gives for the same text, whatever is kept in the cache, under every layout.
#include "tests/support/terminal.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::chat_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

const std::filesystem::path kFixtures = std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures";

constexpr const char* kTokens = "6";  // of each answer

/// A model with the tokenizer of byte_fallback.json and a chat template.
class Chat : public ::testing::Test {
 protected:
  Chat() {
    std::ofstream(path("config.json"))
        << json{{"hidden_size", 32},       {"num_hidden_layers", 1}, {"num_attention_heads", 4},      {"vocab_size", 429},
                {"intermediate_size", 48}, {"model_type", "llama"},  {"max_position_embeddings", 512}}
               .dump();
    std::string ids;
    for (int i = 0; i < 200; ++i) ids += {static_cast<char>(i * 7 % 251), '\0', '\0', '\0'};
    std::ofstream(path("any.u32"), std::ios::binary) << ids;
    report({"train", "--config", path("config.json"), "--data", path("any.u32"), "--seq", "16", "--steps", "1", "--lr", "0.1",
            "--save", path("run")});
    std::filesystem::copy_file(kFixtures / "byte_fallback.json", model() + "/tokenizer.json");
    write("run/step-000001/tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
    write("run/step-000001/chat_template.jinja",
          "{{ bos_token }}{% for m in messages %}\n{{ m.role }} {{ m.content }} \n{% endfor %}\n"
          "{% if add_generation_prompt %}assistant {% endif %}");
  }
  std::string path(const std::string& name) const { return data_.path(name); }
  std::string model() const { return path("run/step-000001"); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  json report(Arguments arguments, const std::string& input = {}) {
    arguments.insert(arguments.end(), {"--json", path("report.json")});
    last_ = run_tsprun(arguments, {.environment = {}, .input = input});
    EXPECT_EQ(last_.end.code, 0) << last_.describe();
    return read_json(path("report.json"));
  }
  /// Returns what `generate` adds to a text that has its special tokens in it.
  const std::vector<int>& after(const std::string& text) {
    const auto [at, fresh] = known_.try_emplace(text);
    if (!fresh) return at->second;
    const std::string ids = path("made.u32");
    report({"tokenize", "--model", model(), write("made.txt", text), "--output", ids});
    return at->second = report({"generate", "--model", model(), "--prompt", ids, "--tokens", kTokens, "--temperature", "0",
                                "--dtype", "f64", "--ignore-eos"})
                            .at("generate")
                            .at("tokens")
                            .get<std::vector<int>>();
  }
  Arguments chat(Arguments more = {}) const {
    more.insert(more.begin(), {"chat", "--model", model(), "--tokens", kTokens, "--temperature", "0", "--dtype", "f64"});
    return more;
  }

  TextData data_{10};
  std::map<std::string, std::vector<int>> known_;  ///< what after() found
  Finished last_;
};

TEST_F(Chat, AnswersAsGenerateGoesOnWithTheConversation) {
  std::string much = "Be brief";
  for (int i = 0; i < 60; ++i) much += ", the cat sat";
  // With a short beginning a pass over all is the quicker way, with a long one the cache is.
  for (const auto& [system, kept] : {std::pair<std::string, bool>{"Be brief.", false}, {much, true}}) {
    for (const char* layout : {"tsp=1", "tsp=2", "tp=2"}) {
      SCOPED_TRACE(layout);
      const json found = report(chat({"--system", system, "--layout", layout}), "Hello\n\nThe cat\nsat").at("chat");
      const std::string out = last_.out;
      std::string text = "<s>system " + system + " \n";
      std::string said;
      ASSERT_EQ(found.at("answers").size(), 3U);
      for (std::size_t turn = 0; turn < 3; ++turn) {
        const json& answer = found.at("answers").at(turn);
        text += std::string("user ") + std::array{"Hello", "The cat", "sat"}.at(turn) + " \nassistant ";
        EXPECT_EQ(answer.at("tokens").get<std::vector<int>>(), after(text)) << "turn " << turn;
        text += answer.at("text").get<std::string>() + " \n";
        said += answer.at("text").get<std::string>() + "\n";
      }
      EXPECT_EQ(out, said);
      EXPECT_EQ(found.at("tokens"), 18);
      EXPECT_EQ(found.at("kept_tokens") > 0, kept) << found;
    }
  }
}

TEST_F(Chat, EndsAnAnswerAtTheModelsEnd) {
  const auto answer = [&] { return report(chat(), "Hello\n").at("chat").at("answers").at(0); };
  const std::vector<int> whole = after("<s>user Hello \nassistant ");
  EXPECT_EQ(answer().at("tokens").get<std::vector<int>>(), whole);
  const int end = whole[3];
  write("run/step-000001/generation_config.json", json{{"eos_token_id", {end}}}.dump());
  const std::vector<int> ended(whole.begin(), std::ranges::find(whole, end) + 1);
  EXPECT_LT(ended.size(), whole.size());
  EXPECT_EQ(answer().at("tokens").get<std::vector<int>>(), ended);
}

TEST_F(Chat, EndsAnAnswerBeforeAStopText) {
  const auto talk = [&](const Arguments& more) { return report(chat(more), "Hello\nAgain\n").at("chat"); };
  const json endless = talk({}).at("answers").at(0);
  const auto whole = endless.at("text").get<std::string>();
  std::size_t middle = whole.size() / 2;
  while ((static_cast<unsigned char>(whole[middle]) & 0xC0) == 0x80) --middle;  // within a character
  const std::string stop = whole.substr(middle);
  const json ended = talk({"--stop", stop});
  EXPECT_EQ(ended.at("answers").at(0).at("text"), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(last_.out.substr(0, last_.out.find('\n')), whole.substr(0, whole.find(stop)));
  const json at_once = talk({"--stop", whole.substr(0, 1)}).at("answers").at(0);
  EXPECT_EQ(at_once.at("text"), "");
  EXPECT_LT(at_once.at("tokens").size(), endless.at("tokens").size()) << "nothing is written behind a stop text";
  // What follows is answered as if the model had said no more.
  const auto answers = talk({"--stop", stop, "--layout", "tp=2"}).at("answers");
  EXPECT_EQ(answers, ended.at("answers"));
}

/// On a terminal a message that can't be taken doesn't end the conversation.
TEST_F(Chat, AsksAgainOnATerminal) {
  Arguments arguments = chat({"--json", path("report.json")});
  const Shown shown = on_terminal(80, "xterm", arguments, "na\xefve\nHello\n\x04");
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_NE(shown.text.find("> not taken: stdin: byte 2 of a message isn't UTF-8"), std::string::npos) << shown.text;
  const json answers = read_json(path("report.json")).at("chat").at("answers");
  ASSERT_EQ(answers.size(), 1U) << shown.text;
  EXPECT_EQ(answers.at(0).at("tokens").get<std::vector<int>>(), after("<s>user Hello \nassistant "));
  EXPECT_NE(shown.text.find("> " + answers.at(0).at("text").get<std::string>()), std::string::npos) << shown.text;
}

TEST_F(Chat, ThatFailsKeepsTheAnswersThatWereGiven) {
  const Finished run = run_tsprun(chat({"--json", path("report.json")}), {.environment = {}, .input = "Hello\nna\xefve\n"});
  EXPECT_EQ(run.end.code, 1) << run.describe();
  EXPECT_EQ(read_json(path("report.json")).at("chat").at("answers").size(), 1U);
}

TEST_F(Chat, SaysWhatIsMissing) {
  const auto refused = [&](int code, const std::string& input, const Arguments& more = {}) {
    const Finished run = run_tsprun(chat(more), {.environment = {}, .input = input});
    EXPECT_EQ(run.end.code, code) << run.describe();
    return run.err;
  };
  const auto expect = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  expect(run_tsprun({"chat"}).err, "chat needs --model DIR");
  expect(refused(2, "", {"--layout", "dp=2"}), "there is one conversation");
  expect(refused(2, "", {"--system", "na\xefve"}), "--system: byte 2 of a message isn't UTF-8");
  expect(refused(1, "Hello\n", {"--context", "8"}), "8 fit with the answer; begin a new one, or try --context");
  expect(refused(1, "na\xefve\n"), "stdin: byte 2 of a message isn't UTF-8");
  write("run/step-000001/chat_template.jinja", "{{ raise_exception('only the ' + messages[0].role) }}");
  expect(refused(1, "Hello\n"), "the template refuses this conversation: only the user");
  write("run/step-000001/chat_template.jinja", "{# nothing #}");
  expect(refused(1, "Hello\n"), "an empty text of the conversation");
  write("run/step-000001/chat_template.jinja", "{% import 'x' %}");
  expect(refused(2, ""), "chat_template.jinja, line 1: {% import %} isn't supported");
  std::filesystem::copy_file(kFixtures / "byte_level_suffix.json", model() + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  write("run/step-000001/chat_template.jinja", "{{ messages[0].content }}<end>");
  expect(refused(1, "Hello\n"), "token 632, and the model's vocabulary 429 ids");
  std::filesystem::remove(model() + "/chat_template.jinja");
  expect(refused(2, ""), "the model has no chat template");
  std::filesystem::remove(model() + "/tokenizer.json");
  write("run/step-000001/chat_template.jinja", "x");
  expect(refused(2, ""), "tokenizer");
}

}  // namespace
}  // namespace tsprun::detail::test::chat_test
