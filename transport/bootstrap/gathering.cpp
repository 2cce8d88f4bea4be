// Packs numbers and entries, and notes for which keys clients wait.
#include "transport/bootstrap/gathering.h"

#include "transport/bootstrap/store_link.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tsprun::detail::bootstrap {

namespace {

/// Returns the number that ends a key behind `prefix`, if it is one below `limit`.
std::optional<std::size_t> number_behind(std::string_view key, std::size_t prefix, std::size_t limit) {
  const auto number = number_from<std::size_t>(key.substr(prefix));
  return number && *number < limit ? number : std::nullopt;
}

}  // namespace

std::vector<std::byte> GatherCut::of(std::span<const std::byte> value) const {
  const auto part = value.subspan(std::min<std::size_t>(from, value.size()));
  const auto first = part.first(std::min<std::size_t>(bytes, part.size()));
  const auto second = value.subspan(std::min<std::size_t>(rest, value.size()));
  std::vector<std::byte> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

std::vector<std::byte> pack_numbers(std::span<const int> numbers) {
  std::vector<std::byte> bits;
  for (const int number : numbers) {
    const auto byte = static_cast<std::size_t>(number) / 8;
    if (bits.size() <= byte) bits.resize(byte + 1);
    bits[byte] |= std::byte{1} << (number % 8);
  }
  return bits;
}

std::vector<int> unpack_numbers(std::span<const std::byte> bits) {
  std::vector<int> numbers;
  for (std::size_t byte = 0; byte < bits.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      if ((bits[byte] >> bit & std::byte{1}) != std::byte{0}) numbers.push_back(static_cast<int>(byte) * 8 + bit);
    }
  }
  return numbers;
}

bool each_entry(std::span<const std::byte> frame, const std::function<void(int, std::span<const std::byte>)>& visit) {
  while (!frame.empty()) {
    GatheredEntry entry;
    if (frame.size() < sizeof entry) return false;
    std::memcpy(&entry, frame.data(), sizeof entry);
    frame = frame.subspan(sizeof entry);
    if (frame.size() < entry.bytes || entry.number >= kMostNumbers) return false;
    visit(static_cast<int>(entry.number), frame.first(entry.bytes));
    frame = frame.subspan(entry.bytes);
  }
  return true;
}

Gatherings::Table& Gatherings::table(const std::string& prefix, std::size_t numbers) {
  Table& known = tables_[prefix];
  if (known.values.size() >= numbers) return known;
  known.values.resize(numbers);
  for (auto each = values_.lower_bound(prefix); each != values_.end() && each->first.starts_with(prefix); ++each) {
    if (const auto number = number_behind(each->first, prefix.size(), numbers)) known.values[*number] = &each->second;
  }
  return known;
}

/// Sends the values of keys that are all there.
void Gatherings::send_all(int client, const std::string& prefix, const GatherCut& cut, std::span<const int> numbers,
                          const Send& send) const {
  const Table& known = tables_.find(prefix)->second;
  Value frame;
  for (const int number : numbers) {
    const Value value = cut.of(*known.values[static_cast<std::size_t>(number)]);
    const GatheredEntry entry{static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(value.size())};
    if (!frame.empty() && frame.size() + sizeof entry + value.size() > kMostGatheredBytes) {
      send(client, prefix, frame);
      frame.clear();
    }
    const auto header = std::as_bytes(std::span(&entry, 1));
    frame.insert(frame.end(), header.begin(), header.end());
    frame.insert(frame.end(), value.begin(), value.end());
  }
  if (!frame.empty()) send(client, prefix, frame);
}

std::string Gatherings::ask(int client, const std::string& prefix, std::span<const std::byte> request, const Send& send) {
  if (prefix.empty() || (prefix.back() >= '0' && prefix.back() <= '9'))
    return fmt::format("it asked for numbered keys behind '{}', which is empty or ends in a digit", prefix);
  GatherCut cut;
  if (request.size() < sizeof cut) return "it asked for numbered keys, but not for which";
  std::memcpy(&cut, request.data(), sizeof cut);
  if (cut.from > cut.rest || cut.bytes > cut.rest - cut.from) return "it asked for parts of values that overlap";
  const std::span<const std::byte> numbers = request.subspan(sizeof cut);
  forget(client);
  Table& known = table(prefix, 8 * numbers.size());
  std::vector<int> there;
  std::vector<int> left;
  for (const int number : unpack_numbers(numbers))
    (known.values[static_cast<std::size_t>(number)] != nullptr ? there : left).push_back(number);
  send_all(client, prefix, cut, there, send);
  if (left.empty()) return {};
  known.waiting[left.front()].insert(client);
  waits_[client] = {prefix, cut, std::move(left), 0};
  return {};
}

void Gatherings::set(std::string_view key, const Value& value, const Send& send) {
  const std::size_t prefix = key.find_last_not_of("0123456789") + 1;
  const auto found = tables_.find(key.substr(0, prefix));
  if (found == tables_.end()) return;
  Table& known = found->second;
  const auto number = number_behind(key, prefix, known.values.size());
  if (!number) return;
  known.values[*number] = &value;
  const auto waiting = known.waiting.extract(static_cast<int>(*number));
  if (waiting.empty()) return;
  for (const int client : waiting.mapped()) {
    Wait& wait = waits_.at(client);
    while (wait.at < wait.left.size() && known.values[static_cast<std::size_t>(wait.left[wait.at])] != nullptr) ++wait.at;
    if (wait.at < wait.left.size()) {
      known.waiting[wait.left[wait.at]].insert(client);
      continue;
    }
    const auto whole = waits_.extract(client);
    send_all(client, whole.mapped().prefix, whole.mapped().cut, whole.mapped().left, send);
  }
}

void Gatherings::forget(int client) {
  const auto wait = waits_.extract(client);
  if (wait.empty()) return;
  auto& waiting = tables_.at(wait.mapped().prefix).waiting;
  const auto number = waiting.find(wait.mapped().left[wait.mapped().at]);
  number->second.erase(client);
  if (number->second.empty()) waiting.erase(number);
}

}  // namespace tsprun::detail::bootstrap
