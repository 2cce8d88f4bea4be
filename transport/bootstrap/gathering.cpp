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

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

/// Most prefixes that can be gathered by: a job uses a few, and each takes memory for as long as the store lives.
constexpr std::size_t kMostPrefixes = 64;

/// Returns the number that ends a key behind `prefix`, if it is one below `limit` without leading zeros: of two keys that end in
/// one number only one is meant.
std::optional<std::size_t> number_behind(std::string_view key, std::size_t prefix, std::size_t limit) {
  const std::string_view digits = key.substr(prefix);
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  const auto number = number_from<std::size_t>(digits);
  return number && *number < limit ? number : std::nullopt;
}

}  // namespace

std::vector<std::byte> GatherCut::of(std::span<const std::byte> value) const {
  const auto part = value.subspan(std::min<std::size_t>(from, value.size()));
  const auto first = part.first(std::min<std::size_t>(bytes, part.size()));
  const auto second = value.subspan(std::min<std::size_t>(rest, value.size()));
  std::vector<std::byte> all(first.begin(), first.end());
  append(all, second);
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

std::vector<std::byte> gather_request(const GatherCut& cut, std::uint32_t id, std::span<const int> numbers) {
  std::vector<std::byte> request;
  append(request, std::as_bytes(std::span(&cut, 1)));
  append(request, std::as_bytes(std::span(&id, 1)));
  append(request, pack_numbers(numbers));
  return request;
}

bool each_entry(std::span<const std::byte> frame, std::uint32_t id,
                const std::function<void(int, std::span<const std::byte>)>& visit) {
  std::uint32_t answered = 0;
  if (frame.size() < sizeof answered) return false;
  std::memcpy(&answered, frame.data(), sizeof answered);
  frame = frame.subspan(sizeof answered);
  while (!frame.empty()) {
    GatheredEntry entry;
    if (frame.size() < sizeof entry) return false;
    std::memcpy(&entry, frame.data(), sizeof entry);
    frame = frame.subspan(sizeof entry);
    if (frame.size() < entry.bytes || entry.number >= kMostNumbers) return false;
    if (answered == id) visit(static_cast<int>(entry.number), frame.first(entry.bytes));
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

std::string Gatherings::ask(int client, const std::string& prefix, std::span<const std::byte> request) {
  if (prefix.empty() || (prefix.back() >= '0' && prefix.back() <= '9'))
    return fmt::format("it asked for numbered keys behind '{}', which is empty or ends in a digit", prefix);
  GatherCut cut;
  std::uint32_t id = 0;
  if (request.size() < sizeof cut + sizeof id) return "it asked for numbered keys, but not for which";
  std::memcpy(&cut, request.data(), sizeof cut);
  std::memcpy(&id, request.data() + sizeof cut, sizeof id);
  if (cut.from > cut.rest || cut.bytes > cut.rest - cut.from) return "it asked for parts of values that overlap";
  const std::span<const std::byte> bits = request.subspan(sizeof cut + sizeof id);
  forget(client);
  std::vector<int> numbers = unpack_numbers(bits);
  if (numbers.empty()) return {};
  if (tables_.size() >= kMostPrefixes && !tables_.contains(prefix))
    return fmt::format("it asked for numbered keys behind '{}', one prefix more than the {} that the store gathers by", prefix,
                       kMostPrefixes);
  Table& known = table(prefix, static_cast<std::size_t>(numbers.back()) + 1);
  const auto missing = std::stable_partition(
      numbers.begin(), numbers.end(), [&](int number) { return known.values[static_cast<std::size_t>(number)] != nullptr; });
  if (missing != numbers.end()) known.waiting[*missing].insert(client);
  const auto there = static_cast<std::size_t>(missing - numbers.begin());
  waits_[client] = {
      .prefix = prefix, .cut = cut, .id = id, .numbers = std::move(numbers), .sent = 0, .ready = there, .there = there};
  return {};
}

std::vector<int> Gatherings::set(std::string_view key, const Value& value) {
  const std::size_t prefix = key.find_last_not_of("0123456789") + 1;
  const auto found = tables_.find(key.substr(0, prefix));
  if (found == tables_.end()) return {};
  Table& known = found->second;
  const auto number = number_behind(key, prefix, known.values.size());
  if (!number) return {};
  known.values[*number] = &value;
  const auto waiting = known.waiting.extract(static_cast<int>(*number));
  if (waiting.empty()) return {};
  std::vector<int> whole;
  for (const int client : waiting.mapped()) {
    Wait& wait = waits_.at(client);
    while (wait.there < wait.numbers.size() && known.values[static_cast<std::size_t>(wait.numbers[wait.there])] != nullptr)
      ++wait.there;
    if (wait.there < wait.numbers.size()) {
      known.waiting[wait.numbers[wait.there]].insert(client);
      continue;
    }
    wait.ready = wait.there;
    whole.push_back(client);
  }
  return whole;
}

std::optional<Gatherings::Frame> Gatherings::next(int client) {
  const auto found = waits_.find(client);
  if (found == waits_.end() || found->second.sent == found->second.ready) return std::nullopt;
  Wait& wait = found->second;
  const Table& known = tables_.find(wait.prefix)->second;
  Frame frame{wait.prefix, {}};
  append(frame.value, std::as_bytes(std::span(&wait.id, 1)));
  for (; wait.sent < wait.ready; ++wait.sent) {
    const int number = wait.numbers[wait.sent];
    const Value value = wait.cut.of(*known.values[static_cast<std::size_t>(number)]);
    const GatheredEntry entry{static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(value.size())};
    if (frame.value.size() + sizeof entry + value.size() > kMostGatheredBytes) break;
    append(frame.value, std::as_bytes(std::span(&entry, 1)));
    append(frame.value, value);
  }
  if (wait.sent == wait.numbers.size()) waits_.erase(found);
  return frame;
}

void Gatherings::forget(int client) {
  const auto found = waits_.extract(client);
  if (found.empty()) return;
  const Wait& wait = found.mapped();
  if (wait.there == wait.numbers.size()) return;
  auto& waiting = tables_.find(wait.prefix)->second.waiting;
  const auto number = waiting.find(wait.numbers[wait.there]);
  number->second.erase(client);
  if (number->second.empty()) waiting.erase(number);
}

}  // namespace tsprun::detail::bootstrap
