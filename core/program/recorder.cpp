// Interns costs and calls, and numbers operations from the program's beginning.
#include "core/program/recorder.h"

#include <bit>
#include <functional>
#include <utility>

namespace tsprun::detail {

namespace {

/// Adds a value to a hash, as FNV-1a adds bytes.
void mix(std::size_t& hash, std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; }

std::size_t hash_of(const KernelCost& cost) {
  std::size_t hash = std::hash<std::string_view>()(cost.kernel);
  mix(hash, std::hash<std::string_view>()(cost.matrix));
  for (const std::uint64_t size : cost.sizes) mix(hash, size);
  mix(hash, std::bit_cast<std::uint64_t>(cost.flops));
  return hash;
}

std::size_t hash_of(const ProgramCall& call) { return static_cast<std::size_t>(call.signature); }

/// Returns ProgramCall::sent_from.
std::uint64_t sent_from(const Arguments& arguments) {
  const std::less_equal<> before;
  const std::byte* begin = arguments.recv.data;
  if (begin == nullptr || !before(begin, arguments.send.data) || !before(arguments.send.data, begin + arguments.recv.bytes()))
    return ProgramCall::kElsewhere;
  return static_cast<std::uint64_t>(arguments.send.data - begin);
}

/// Returns arguments without their addresses.
Arguments without_memory(Arguments arguments) {
  arguments.send.data = nullptr;
  arguments.recv.data = nullptr;
  arguments.posted = kNotNow;
  arguments.received = nullptr;
  return arguments;
}

/// Returns the index of `value` in `all`, to which it is added if it isn't there.
template <class T>
std::uint32_t intern(std::vector<T>& all, std::unordered_multimap<std::size_t, std::uint32_t>& known, const T& value) {
  const std::size_t hash = hash_of(value);
  for (auto [at, end] = known.equal_range(hash); at != end; ++at) {
    if (all[at->second] == value) return at->second;
  }
  const auto index = static_cast<std::uint32_t>(all.size());
  all.push_back(value);
  known.emplace(hash, index);
  return index;
}

}  // namespace

void Recorder::begin(const CategoryBytes& use) {
  program_ = {};
  program_.held_at_begin = use;
  times_.clear();
  costs_.clear();
  calls_.clear();
  for (int i = 0; i < kQueues; ++i) before_[i] = posted_[i];
  recording_ = true;
}

Program Recorder::end() {
  recording_ = false;
  return std::exchange(program_, {});
}

void Recorder::kernel(const KernelCost& cost) {
  if (!recording_) return;
  program_.items.push_back({.kind = ItemKind::kernel, .index = intern(program_.costs, costs_, cost)});
}

void Recorder::add(ItemKind kind, Stream stream, const Operation& operation, std::uint64_t number) {
  posted_[static_cast<std::size_t>(stream)] = number;
  const auto* collective = dynamic_cast<const Collective*>(&operation);  // all but tests' own operations are
  if (!recording_ || collective == nullptr) return;
  const OperationInfo& info = operation.info();
  ProgramCall call{info};
  call.group_sequence = 0;
  call.algorithm = collective->algorithm();
  call.arguments = without_memory(collective->arguments());
  call.sent_from = sent_from(collective->arguments());
  const auto [group, is_new] = program_.groups.try_emplace(info.group);
  if (is_new) group->second = collective->group().ranks;
  const std::size_t known = program_.calls.size();
  const std::uint32_t index = intern(program_.calls, calls_, call);
  if (counts_received_ && program_.calls.size() > known) program_.calls.back().received_by_all = collective->received_by_all();
  program_.items.push_back(
      {.kind = kind, .stream = static_cast<std::uint8_t>(stream), .index = index, .amount = relative(stream, number)});
}

std::uint64_t Recorder::relative(Stream stream, std::uint64_t number) const {
  const std::uint64_t before = before_[static_cast<std::size_t>(stream)];
  return number > before ? number - before : 0;
}

void Recorder::wait(Stream stream, std::uint64_t number) {
  if (!recording_) return;
  program_.items.push_back(
      {.kind = ItemKind::wait, .stream = static_cast<std::uint8_t>(stream), .amount = relative(stream, number)});
}

void Recorder::stage(PassPart part, bool backward) {
  if (!recording_) return;
  program_.items.push_back(
      {.kind = ItemKind::stage, .stream = static_cast<std::uint8_t>(part), .amount = backward ? std::uint64_t{1} : 0});
}

void Recorder::take(std::span<const std::byte> memory, Category category) {
  if (memory.empty()) return;
  taken_[memory.data()] = category;
  if (!recording_) return;
  program_.items.push_back({.kind = ItemKind::take, .index = static_cast<std::uint32_t>(category), .amount = memory.size()});
}

void Recorder::give(std::span<const std::byte> memory) {
  const auto found = taken_.find(memory.data());
  if (found == taken_.end()) return;
  const Category category = found->second;
  taken_.erase(found);
  if (!recording_) return;
  program_.items.push_back({.kind = ItemKind::give, .index = static_cast<std::uint32_t>(category), .amount = memory.size()});
}

}  // namespace tsprun::detail
