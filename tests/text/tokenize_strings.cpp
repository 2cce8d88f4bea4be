// Tokenizes many strings for compare_tokenizers.py: tokenize_strings DIR encode|special|decode < strings > results. A string is
// its length (uint32) and its bytes; ids are their number and themselves (uint32). Encoding answers with ids, and with the text
// that they decode to; decoding reads ids, and answers with their text, which must be what a stream makes of them.
#include "layers/text/tokenizer.h"
#include "transport/cause.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tsprun::detail::Token;
using namespace tsprun::detail::text;

template <class Item>
bool read_list(std::vector<Item>& items) {
  std::uint32_t count = 0;
  if (std::fread(&count, sizeof(count), 1, stdin) != 1) return false;
  items.resize(count);
  return std::fread(items.data(), sizeof(Item), count, stdin) == count;
}

template <class List>
void write_list(const List& items) {
  const auto count = static_cast<std::uint32_t>(items.size());
  std::fwrite(&count, sizeof(count), 1, stdout);
  std::fwrite(items.data(), sizeof(items[0]), items.size(), stdout);
}

int run(const char* folder, std::string_view mode) {
  const Tokenizer tokenizer = Tokenizer::load(folder);
  Encoder encoder(tokenizer);
  std::vector<char> text;
  std::vector<Token> ids;
  if (mode == "decode") {
    while (read_list(ids)) write_list(tokenizer.decode(ids, false));
    return 0;
  }
  while (read_list(text)) {
    ids.clear();
    encoder.encode({text.data(), text.size()}, mode == "special", ids);
    write_list(ids);
    write_list(tokenizer.decode(ids, false));
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  try {
    return run(words[1], words[2]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
