// Any requests for many values of the store, and any frames as its answers: the server answers with the values that were asked
// for, each once, or says what is wrong.
#include "transport/bootstrap/gathering.h"

#include "transport/bootstrap/store_link.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace tsprun::detail::bootstrap;

/// Numbers whose keys are there from the beginning, and those whose keys come later.
constexpr int kThere = 40;
constexpr int kAll = 48;

std::vector<std::byte> value_of(int number) {
  return std::vector<std::byte>(static_cast<std::size_t>(number) * 400, std::byte(number));
}

/// Takes all frames of the one client, and notes the numbers in them.
void take(Gatherings& gatherings, std::uint32_t id, const GatherCut& cut, std::set<int>& got) {
  while (const auto frame = gatherings.next(1)) {
    if (frame->value.size() > kMostGatheredBytes) std::abort();
    const bool whole = each_entry(frame->value, id, [&](int number, std::span<const std::byte> value) {
      if (number >= kAll || !std::ranges::equal(value, cut.of(value_of(number))) || !got.insert(number).second) std::abort();
    });
    if (!whole) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size)).first(std::min(size, kMostValueBytes));
  std::size_t bytes = 0;
  each_entry(input, 0, [&](int number, std::span<const std::byte> value) {
    bytes += value.size();
    if (number < 0 || static_cast<std::size_t>(number) >= kMostNumbers || bytes > input.size()) std::abort();
  });

  Gatherings::Values values;
  for (int number = 0; number < kThere; ++number) values["k/" + std::to_string(number)] = value_of(number);
  Gatherings gatherings(values);
  if (!gatherings.ask(1, "k/", input).empty()) return 0;
  GatherCut cut;
  std::uint32_t id = 0;
  std::memcpy(&cut, input.data(), sizeof cut);
  std::memcpy(&id, input.data() + sizeof cut, sizeof id);
  const std::vector<int> asked = unpack_numbers(input.subspan(sizeof cut + sizeof id));
  std::set<int> got;
  take(gatherings, id, cut, got);
  for (int number = kThere; number < kAll; ++number) {
    const std::string key = "k/" + std::to_string(number);
    gatherings.set(key, values[key] = value_of(number));
  }
  take(gatherings, id, cut, got);
  // All is sent, unless some of it never comes: then only what was there at once.
  const bool all_come = asked.empty() || asked.back() < kAll;
  const auto expected = std::ranges::count_if(asked, [&](int number) { return number < (all_come ? kAll : kThere); });
  if (got.size() != static_cast<std::size_t>(expected)) std::abort();
  gatherings.forget(1);
  return 0;
}
