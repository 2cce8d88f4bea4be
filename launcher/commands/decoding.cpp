// Declares and checks what generate and chat share.
#include "launcher/commands/decoding.h"

#include "launcher/model/layouts.h"
#include "launcher/option_table.h"
#include "launcher/refuse.h"
#include "launcher/values.h"
#include "layers/io/json_text.h"
#include "layers/model/decode.h"
#include "layers/text/generation_config.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>

namespace tsprun::detail::launcher {

void DrawingOptions::declare(OptionTable& table) {
  using enum Trait;
  table.add("--temperature T", temperature, "of the logits; 0: always the likeliest token; default: the model's, or 1",
            Number{{.lowest = 0, .highest = text::kHottest}}, computed);
  table.add("--top-k K", top_k, "only the K likeliest; 0: all; default: the model's, or 0", computed);
  table.add("--top-p P", top_p,
            "only the likeliest that together have this probability; default: the model's, or 1 (the model's are those of its "
            "generation_config.json)",
            Number{{.lowest = 0, .highest = 1, .open = true}}, computed);
  table.add("--repetition-penalty R", repetition_penalty,
            "divide the logits of tokens that the text has already by R, or multiply those below 0; default: the model's, or 1",
            Number{{.lowest = 0, .highest = text::kMostPenalty, .open = true}}, computed);
}

void DrawingOptions::take_recommended(const std::filesystem::path& folder, std::size_t vocabulary) {
  const text::RecommendedSampling model = text::recommended_sampling(folder);
  std::string said;
  const auto take = [&](const char* option, auto& into, const auto& recommended) {
    if (into.given() || !recommended || *recommended == into.value) return;
    into = *recommended;
    said += fmt::format(" {} {}", option, into.value);
  };
  const std::optional<double> heat = model.draws == false ? 0.0 : model.temperature;
  if (heat != 0.0 || !(top_k.given() || top_p.given())) take("--temperature", temperature, heat);
  if (temperature != 0) {
    take("--top-k", top_k, model.top_k ? std::optional(std::min(*model.top_k, vocabulary)) : std::nullopt);
    take("--top-p", top_p, model.top_p);
  }
  take("--repetition-penalty", repetition_penalty, model.repetition_penalty);
  if (!said.empty()) spdlog::info("as the model's generation_config.json recommends:{}", said);
  if (!model.ignored.empty())
    spdlog::warn("{}: not supported, so texts may differ from what its authors saw: {}",
                 (folder / "generation_config.json").string(), fmt::join(model.ignored, ", "));
}

SamplingOptions DrawingOptions::validated(const std::filesystem::path& folder, std::size_t vocabulary, std::uint64_t seed) {
  top_k = checked("--top-k", top_k, 0, vocabulary);
  if (!folder.empty()) take_recommended(folder, vocabulary);
  const auto drawn = [](const std::string& option, const std::string& text) {
    refuse(
        fmt::format("{} {}: --temperature 0 draws nothing, but takes the likeliest token; leave one of them out", option, text));
  };
  if (temperature == 0 && top_k != 0) drawn("--top-k", top_k.text);
  if (temperature == 0 && top_p < 1) drawn("--top-p", top_p.text);
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .repetition_penalty = repetition_penalty, .seed = seed};
}

nlohmann::ordered_json sampling_json(const SamplingOptions& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"repetition_penalty", sampling.repetition_penalty}};
}

void StopOptions::declare(OptionTable& table) {
  table.add("--stop TEXT", given,
            "end a text before this one in what is added, or, if it is a special token such as '<|im_end|>', at it; a newline is "
            "$'\\n' in bash; may be given several times");
}

void StopOptions::validate(const ModelText& reader) {
  for (const std::string& text : given) {
    // One that stands in the text: where the tokenizer lacks a character it puts a special token, too.
    const auto special = [&](Token id) {
      const std::string own = reader.tokenizer()->decode({&id, 1}, false);
      return reader.tokenizer()->decode({&id, 1}, true).empty() && !own.empty() && text.find(own) != std::string::npos;
    };
    const std::string name = fmt::format("--stop '{}'", printable(text));
    const std::vector<Token> ids = reader.ids_within(text, name);
    const auto first = reader.tokenizer() ? std::ranges::find_if(ids, special) : ids.end();
    if (first == ids.end()) {
      if (text.find("\\n") != std::string::npos)
        spdlog::warn("{}: \\n in it are two characters; a newline is $'\\n' in bash", name);
      texts.push_back(text);
    } else if (ids.size() == 1) {
      tokens.push_back(*first);
    } else {
      refuse(fmt::format("{}: {} in it is a special token, which isn't part of a text; stop at it alone, or at the rest", name,
                         printable(reader.tokenizer()->decode({&*first, 1}, false))));
    }
  }
}

std::size_t checked(const char* option, const Given<std::size_t>& number, std::size_t lowest, std::size_t highest) {
  return static_cast<std::size_t>(parse_integer(option, number.given() ? number.text : std::to_string(number.value),
                                                static_cast<std::int64_t>(lowest), static_cast<std::int64_t>(highest)));
}

Layout decodable(const Layout& layout) {
  Layout works;
  for (const Axis& axis : layout.axes) {
    const AxisRow& row = row_of(axis.kind);
    const bool decoded = row.why_not_decoded.empty();
    if (decoded || row.decoded_instead) works.axes.push_back({decoded ? axis.kind : *row.decoded_instead, axis.degree});
  }
  return works.axes.empty() ? Layout::tsp(layout.ranks()) : works;
}

void check_decodable(std::string_view command, const GlobalOptions& global) {
  const Layout layout = layout_of(global);
  if (const std::string why = Decoder::why_not(layout.plain()); !why.empty()) {
    refuse(fmt::format("{}: {} can't decode so: {}; try --layout {}", ranks_as_typed(global), command, why,
                       decodable(global.layout).print()));
  }
  for (const Axis& axis : layout.axes) {
    const Variant* variant = variant_of(axis);
    if (variant != nullptr && !variant->why_not_decoded.empty())
      refuse(fmt::format("--{} {}: {} can't decode so: {}", name(axis.kind), variant->name, command, variant->why_not_decoded));
  }
}

}  // namespace tsprun::detail::launcher
