// Text for a model with a tokenizer: `--data` and `--prompt` give what `tokenize`'s ids give, and what is said without one.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tsprun::detail::test::model_text_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

const std::filesystem::path kFixtures = std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures";

/// A model of 429 ids with the tokenizer of byte_fallback.json, whose texts begin with id 1.
class ModelWithATokenizer : public ::testing::Test {
 protected:
  ModelWithATokenizer() {
    std::ofstream(path("config.json")) << json{{"hidden_size", 32},        {"num_hidden_layers", 1},
                                               {"num_attention_heads", 4}, {"vocab_size", 429},
                                               {"intermediate_size", 48},  {"model_type", "llama"},
                                               {"eos_token_id", nullptr},  {"max_position_embeddings", 256}}
                                              .dump();
    std::string ids;
    for (int i = 0; i < 200; ++i) ids += {static_cast<char>(i * 7 % 251), '\0', '\0', '\0'};
    std::ofstream(path("any.u32"), std::ios::binary) << ids;
    report({"train", "--config", path("config.json"), "--data", path("any.u32"), "--seq", "16", "--steps", "1", "--lr", "0.1",
            "--save", path("run")});
    std::filesystem::copy_file(kFixtures / "byte_fallback.json", model() + "/tokenizer.json");
  }
  std::string path(const std::string& name) const { return data_.path(name); }
  std::string model() const { return path("run/step-000001"); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  json report(Arguments arguments) {
    arguments.insert(arguments.end(), {"--json", path("report.json")});
    last_ = run_tsprun(arguments);
    EXPECT_EQ(last_.end.code, 0) << last_.describe();
    return read_json(path("report.json"));
  }
  static std::string refused(const Arguments& arguments) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    return run.err;
  }
  /// Makes ids of a text as `tokenize` does, with the special ones.
  std::string ids_of(const std::string& text) {
    std::string ids = path("made.u32");
    report({"tokenize", "--model", model(), "--special", write("made.txt", text), "--output", ids});
    return ids;
  }

  TextData data_{10};
  Finished last_;
};

void expect(const std::string& said, const std::string& part) { EXPECT_NE(said.find(part), std::string::npos) << said; }

const std::string kText = "The cat sat on the mat, and the na\u00efve \u4e2d\u6587 dog said: 12 times!\n";

TEST_F(ModelWithATokenizer, KeepsTheTokensOfALongText) {
  std::string text;
  while (text.size() < std::size_t{9} << 20) text += kText;
  const std::string book = write("book.txt", text);
  const auto loss = [&] {
    const json run = report({"train", "--model", model(), "--data", book, "--seq", "16", "--steps", "1", "--lr", "0.1"});
    return std::pair(run.at("steps"), last_.err.find("its tokens are those of an earlier run") != std::string::npos);
  };
  const auto kept = [&] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path("")))
      if (entry.path().extension() == ".tokens") found.push_back(entry.path().string());
    return found;
  };
  const auto first = loss();
  EXPECT_FALSE(first.second);
  ASSERT_EQ(kept().size(), 1U);
  const auto again = loss();
  EXPECT_TRUE(again.second);
  EXPECT_EQ(again.first.at(0).at("loss"), first.first.at(0).at("loss"));

  // Whoever changes the file changes no result.
  std::fstream file(kept().front(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(1000);
  file.write("\0\0\0\0", 4);
  file.close();
  const auto anew = loss();
  EXPECT_FALSE(anew.second);
  EXPECT_EQ(anew.first.at(0).at("loss"), first.first.at(0).at("loss"));
  EXPECT_TRUE(loss().second);

  write("book.txt", "Another" + text);
  EXPECT_FALSE(loss().second);
  EXPECT_EQ(kept().size(), 2U);
}

TEST_F(ModelWithATokenizer, ReadsDataAsItsTokenizerDoes) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += kText;
  const std::string file = write("book.txt", text);
  const std::string ids = ids_of(text);
  for (const char* layout : {"tsp=1", "tsp=2"}) {
    const Arguments evaluate = {"eval", "--model", model(), "--layout", layout, "--seq", "16", "--data"};
    const auto loss_of = [&](const std::string& data) {
      Arguments arguments = evaluate;
      arguments.push_back(data);
      const json found = report(arguments);
      return std::pair(found.at("loss"), found.at("tokens"));
    };
    EXPECT_EQ(loss_of(file), loss_of(ids)) << layout;
  }
  const auto losses = [&](const std::string& data) {
    const json run = report({"train", "--resume", path("run"), "--data", data, "--steps", "3"});
    json found = json::array();
    for (const json& step : run.at("steps")) found.push_back(step.at("loss"));
    std::filesystem::remove_all(path("run/step-000003"));
    return found;
  };
  EXPECT_EQ(losses(file), losses(ids));
}

TEST_F(ModelWithATokenizer, EndsEachDocumentOfItsDataIfAsked) {
  const std::string one = write("one.txt", kText);
  const std::string two = write("two.txt", "A dog.\n\nA cat.");
  const std::string ids = path("both.u32");
  report({"tokenize", "--model", model(), "--special", "--eos", "<s>", one, two, "--output", ids});
  const auto evaluate = [&](Arguments more) {
    more.insert(more.begin(), {"eval", "--model", model(), "--seq", "16", "--data"});
    const json found = report(more);
    return std::pair(found.at("loss"), found.at("tokens"));
  };
  const auto ended = evaluate({ids});
  EXPECT_EQ(evaluate({one, two, "--eos", "<s>"}), ended);
  EXPECT_EQ(evaluate({one, two, "--eos", "1", "--layout", "tsp=2"}).second, ended.second);
  EXPECT_EQ(evaluate({one, two}).second.get<int>() + 2, ended.second.get<int>());

  expect(refused({"eval", "--model", model(), "--data", ids, "--eos", "1"}), "--eos 1: it ends texts, and files of token ids");
  expect(refused({"eval", "--model", model(), "--data", one, "--eos", "429"}), "--eos 429");
  expect(refused({"eval", "--config", "nano", "--data", one, "--eos", "1"}), "--eos 1: this model's ids are bytes");
}

TEST_F(ModelWithATokenizer, ContinuesAPromptOfText) {
  const std::string prompt = "The na\u00efve cat";
  const auto generate = [&](const std::string& beginning, const std::string& layout) {
    return report({"generate", "--model", model(), "--prompt", beginning, "--tokens", "24", "--temperature", "0", "--layout",
                   layout})
        .at("generate");
  };
  const json of_text = generate(prompt, "tsp=1");
  const std::string said = last_.out;
  EXPECT_EQ(of_text.at("tokens"), generate(ids_of(prompt), "tsp=1").at("tokens"));
  EXPECT_EQ(of_text.at("tokens"), generate(prompt, "tsp=2").at("tokens"));
  EXPECT_EQ(of_text.at("prompt"), prompt);
  EXPECT_EQ(said, prompt + of_text.at("text").get<std::string>() + "\n");
  // The text is what `tokenize --decode` makes of prompt and added ids.
  std::ifstream made(ids_of(prompt), std::ios::binary);
  std::string ids((std::istreambuf_iterator<char>(made)), {});
  for (const int id : of_text.at("tokens")) ids += {static_cast<char>(id), static_cast<char>(id >> 8), '\0', '\0'};
  report({"tokenize", "--model", model(), "--decode", write("all.u32", ids), "--output", path("back.txt")});
  std::ifstream back(path("back.txt"), std::ios::binary);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(back)), {}) + "\n", said);

  // Lines of a file, together.
  const json together = report({"generate", "--model", model(), "--prompts", write("lines.txt", prompt + "\nA dog\n"), "--tokens",
                                "24", "--temperature", "0", "--dtype", "f64"})
                            .at("generate")
                            .at("texts");
  EXPECT_EQ(together.at(0).at("prompt"), prompt);
  EXPECT_EQ(together.at(1).at("prompt"), "A dog");
}

TEST_F(ModelWithATokenizer, EndsATextAtAnyOfItsEnds) {
  const Arguments common = {"generate", "--model", model(), "--tokens", "24",    "--dtype",
                            "f64",      "--seed",  "3",     "--audit",  "strict"};
  const auto generate = [&](Arguments more) {
    more.insert(more.begin(), common.begin(), common.end());
    return report(more).at("generate");
  };
  const auto tokens_of = [](const json& text) { return text.at("tokens").get<std::vector<int>>(); };
  const std::vector<std::string> prompts = {"The cat", "A dog", "12 times"};
  std::vector<std::vector<int>> endless;
  for (const std::string& prompt : prompts) {
    const json text = generate({"--prompt", prompt});
    EXPECT_EQ(text.at("ended_by"), "length");
    endless.push_back(tokens_of(text));
    ASSERT_EQ(endless.back().size(), 24U);
  }
  // Two ids end texts: one of the first text, and one of the second that comes later.
  const std::vector<int> ends = {endless[0][4], endless[1][9]};
  write("run/step-000001/generation_config.json", json{{"eos_token_id", ends}}.dump());
  std::vector<std::vector<int>> expected;
  for (const std::vector<int>& text : endless) {
    const auto end = std::find_first_of(text.begin(), text.end(), ends.begin(), ends.end());
    expected.emplace_back(text.begin(), end == text.end() ? end : end + 1);
  }
  ASSERT_LE(expected[0].size(), 5U);
  ASSERT_LE(expected[1].size(), 10U);
  for (const char* layout : {"tsp=1", "tsp=2", "tp=2"}) {
    const json text = generate({"--prompt", prompts[0], "--layout", layout});
    EXPECT_EQ(tokens_of(text), expected[0]) << layout;
    EXPECT_EQ(text.at("ended_by"), "eos");
  }
  EXPECT_EQ(tokens_of(generate({"--prompt", prompts[0], "--ignore-eos"})), endless[0]);

  std::string lines;
  for (const std::string& prompt : prompts) lines += prompt + "\n";
  for (const char* layout : {"tsp=1", "sp=2", "dp=2", "dp=3", "dp=2,tsp=2"}) {
    const json texts = generate({"--prompts", write("lines.txt", lines), "--layout", layout}).at("texts");
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(tokens_of(texts.at(i)), expected[i]) << layout << ", " << i;
  }
}

TEST_F(ModelWithATokenizer, DrawsAsItsGenerationConfigRecommends) {
  const Arguments common = {"generate", "--model", model(), "--tokens", "12", "--seed", "3", "--prompt", "The cat"};
  const auto generate = [&](Arguments more) {
    more.insert(more.begin(), common.begin(), common.end());
    return report(more).at("generate");
  };
  const auto sampling = [](double temperature, int top_k, double top_p, double penalty) {
    return json{{"temperature", temperature}, {"top_k", top_k}, {"top_p", top_p}, {"repetition_penalty", penalty}};
  };
  EXPECT_EQ(generate({}).at("sampling"), sampling(1, 0, 1, 1));
  const json typed = generate({"--temperature", "0.7", "--top-k", "20", "--top-p", "0.8", "--repetition-penalty", "1.3"});
  const json greedy = generate({"--temperature", "0"});
  EXPECT_NE(generate({"--temperature", "0", "--repetition-penalty", "100"}).at("tokens"), greedy.at("tokens"));

  const std::string file = "run/step-000001/generation_config.json";
  write(file, R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.3})");
  EXPECT_EQ(generate({}).at("sampling"), sampling(0.7, 20, 0.8, 1.3));
  for (const char* layout : {"tsp=1", "tsp=2", "tp=2"})
    EXPECT_EQ(generate({"--layout", layout}).at("tokens"), typed.at("tokens"));
  EXPECT_EQ(generate({"--temperature", "0.5", "--top-k", "0"}).at("sampling"), sampling(0.5, 0, 0.8, 1.3));
  EXPECT_EQ(generate({"--temperature", "0"}).at("sampling"), sampling(0, 0, 1, 1.3));
  write(file, R"({"do_sample": false, "temperature": 0.7})");
  EXPECT_EQ(generate({}).at("tokens"), greedy.at("tokens"));
  EXPECT_EQ(generate({"--top-k", "5"}).at("sampling"), sampling(1, 5, 1, 1));
  // More candidates than ids.
  write(file, R"({"top_k": 1000000})");
  EXPECT_NO_THROW(generate({}));
}

/// Returns where a text's characters begin.
std::vector<std::size_t> characters_of(const std::string& text) {
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at < text.size(); ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) places.push_back(at);
  return places;
}

TEST_F(ModelWithATokenizer, EndsATextBeforeAStopText) {
  const std::string prompt = "The cat";
  const auto generate = [&](Arguments more) {
    more.insert(more.begin(),
                {"generate", "--model", model(), "--tokens", "24", "--dtype", "f64", "--seed", "3", "--audit", "strict"});
    return report(more).at("generate");
  };
  const json endless = generate({"--prompt", prompt});
  const auto text = endless.at("text").get<std::string>();
  const auto tokens = endless.at("tokens").get<std::vector<int>>();
  const std::vector<std::size_t> places = characters_of(text);
  ASSERT_GT(places.size(), 24U) << "tokens of several characters";
  // Of one character, which lies within a token, and of several tokens.
  for (const std::size_t characters : {std::size_t{1}, std::size_t{9}}) {
    const std::size_t from = places[places.size() / 2];
    const std::string stop = text.substr(from, places[places.size() / 2 + characters] - from);
    const std::string before = text.substr(0, text.find(stop));
    std::vector<int> made;
    for (const char* layout : {"tsp=1", "tp=2"}) {
      const json ended = generate({"--prompt", prompt, "--layout", layout, "--stop", "never this", "--stop", stop});
      EXPECT_EQ(last_.out, prompt + before + "\n") << stop;
      EXPECT_EQ(ended.at("text"), before);
      EXPECT_EQ(ended.at("ended_by"), "stop");
      made = ended.at("tokens").get<std::vector<int>>();
      EXPECT_LT(made.size(), tokens.size());
      EXPECT_TRUE(std::equal(made.begin(), made.end(), tokens.begin()));
    }
    // Each text of several ends for itself.
    const std::string file = write("lines.txt", "A dog\n" + prompt + "\n12 times\n");
    for (const char* layout : {"tsp=2", "dp=3"}) {
      const json all = generate({"--prompts", file, "--layout", layout}).at("texts");
      const json texts = generate({"--prompts", file, "--layout", layout, "--stop", stop}).at("texts");
      EXPECT_EQ(texts.at(1).at("text"), before);
      EXPECT_EQ(texts.at(1).at("tokens"), made) << "no token more than alone";
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto whole = all.at(i).at("text").get<std::string>();
        EXPECT_EQ(texts.at(i).at("text"), whole.substr(0, whole.find(stop))) << i;
        EXPECT_EQ(texts.at(i).at("ended_by"), whole.find(stop) == std::string::npos ? "length" : "stop") << i;
      }
    }
  }
}

/// Special tokens are left out of the text, but whoever asks to stop at one means it.
TEST_F(ModelWithATokenizer, EndsATextAtASpecialTokenThatIsAStopText) {
  const auto generate = [&](Arguments more) {
    more.insert(more.begin(), {"generate", "--model", model(), "--prompt", write("ids.u32", std::string("\x05\0\0\0", 4)),
                               "--tokens", "24", "--dtype", "f64", "--seed", "3", "--ignore-eos"});
    return report(more).at("generate");
  };
  const auto tokens = generate({}).at("tokens").get<std::vector<int>>();
  json tokenizer = read_json(model() + "/tokenizer.json");
  for (const auto& [word, id] : tokenizer.at("model").at("vocab").items()) {
    if (id != tokens[9]) continue;
    json special = tokenizer.at("added_tokens").at(1);
    special["id"] = id;
    special["content"] = word;
    tokenizer["added_tokens"].push_back(special);
    write("run/step-000001/tokenizer.json", tokenizer.dump());
    const json ended = generate({"--stop", word});
    EXPECT_EQ(ended.at("tokens").get<std::vector<int>>(),
              std::vector<int>(tokens.begin(), std::ranges::find(tokens, tokens[9]) + 1));
    EXPECT_EQ(ended.at("ended_by"), "stop");
    const std::string said = refused({"generate", "--model", model(), "--prompt", "A", "--stop", "a" + word});
    expect(said, word + " in it is a special token, which isn't part of a text");
    return;
  }
  FAIL() << "token " << tokens[9] << " isn't in the vocabulary";
}

TEST_F(ModelWithATokenizer, SaysWhichTextCantBeReadAndWhatWorks) {
  expect(refused({"eval", "--model", model(), "--data", write("latin1.txt", "na\xefve and more")}),
         "latin1.txt: byte 2 of 14 isn't UTF-8");
  expect(refused({"generate", "--model", model(), "--prompt", "na\xefve"}), "--prompt: byte 2 of 5 isn't UTF-8");
  std::filesystem::remove(model() + "/tokenizer.json");
  for (const Arguments& arguments : {Arguments{"eval", "--model", model(), "--data", write("book.txt", kText)},
                                     Arguments{"train", "--resume", path("run"), "--steps", "2", "--data", path("book.txt")},
                                     Arguments{"generate", "--model", model(), "--prompt", "The"}}) {
    const std::string said = refused(arguments);
    expect(said, "has no tokenizer.json, and a vocabulary of 429 isn't that of bytes");
    expect(said, "train and eval take token ids (--data tokens.u32), and so does generate (--prompt ids.u32)");
  }
  write("run/step-000001/tokenizer.model", "sentencepiece");
  expect(refused({"eval", "--model", model(), "--data", path("book.txt")}), "tokenizer.model, and only tokenizer.json is read");
  // Ids need no tokenizer.
  report({"eval", "--model", model(), "--data", path("any.u32"), "--seq", "16"});
  report({"generate", "--model", model(), "--prompt", path("any.u32"), "--tokens", "4"});
}

TEST_F(ModelWithATokenizer, ShowsNumbersWhereItsTokenizerCantBeRead) {
  write("run/step-000001/tokenizer.json", "{}");
  const json found = report({"generate", "--model", model(), "--prompt", path("any.u32"), "--tokens", "4"});
  expect(last_.err, "tokens are shown as numbers");
  expect(refused({"generate", "--model", model(), "--prompt", "The"}), "--prompt: text, but ");
}

}  // namespace
}  // namespace tsprun::detail::test::model_text_test
