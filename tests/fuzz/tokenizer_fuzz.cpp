// Any bytes as a tokenizer.json: refused with an Error, or a tokenizer whose stream gives the text that it gives in one go,
// whatever it makes of a text that has a bit of all.
#include "layers/text/tokenizer.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tsprun::detail::text;
  constexpr std::string_view kText =
      " the cat's <s>naïve</s> e\u0301 \u1100\u1161\u11a8 \u4e2d\u6587 \U0001f469\u200d\U0001f467 12345\r\n\t▁▁ [MASK] "
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
  try {
    const Tokenizer tokenizer = Tokenizer::parse({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    std::vector<tsprun::detail::Token> ids;
    Encoder encoder(tokenizer);
    encoder.encode(kText, true, ids);
    encoder.encode(kText, false, ids);
    for (const auto id : ids)
      if (id < 0) std::abort();
    for (tsprun::detail::Token id = 0; id < 300; ++id) ids.push_back(id);
    TextStream stream(tokenizer, false);
    std::string text;
    for (const auto id : ids) text += stream.add(id);
    if (text + stream.finish() != tokenizer.decode(ids, false)) std::abort();
  } catch (const tsprun::Error&) {
  }
  return 0;
}
