// Each stop text is looked for by itself.
#include "layers/text/stop_texts.h"

#include <algorithm>
#include <utility>

namespace tsprun::detail::text {

void StopTexts::Stop::take(char byte) {
  while (begun > 0 && text[begun] != byte) begun = shorter[begun - 1];
  if (text[begun] == byte) ++begun;
}

StopTexts::StopTexts(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    Stop stop{.text = text, .shorter = std::vector<std::size_t>(text.size())};
    for (std::size_t i = 1; i < text.size(); ++i) {
      stop.take(text[i]);
      stop.shorter[i] = stop.begun;
    }
    stop.begun = 0;
    stops_.push_back(std::move(stop));
  }
}

std::string StopTexts::add(std::string_view piece) {
  if (found_) return {};
  for (const char byte : piece) {
    kept_ += byte;
    std::size_t longest = 0;
    for (Stop& stop : stops_) {
      stop.take(byte);
      if (stop.begun == stop.text.size()) longest = std::max(longest, stop.begun);
    }
    if (longest == 0) continue;
    found_ = true;
    kept_.resize(kept_.size() - longest);
    return std::exchange(kept_, {});
  }
  std::size_t begun = 0;
  for (const Stop& stop : stops_) begun = std::max(begun, stop.begun);
  std::string certain = kept_.substr(0, kept_.size() - begun);
  kept_.erase(0, certain.size());
  return certain;
}

std::string StopTexts::rest() { return std::exchange(kept_, {}); }

}  // namespace tsprun::detail::text
