// Collects the machines' names, cuts the ranks into nodes, and packs the plan.
#include "transport/bootstrap/roll_call.h"

#include "transport/bootstrap/placement.h"
#include "transport/bootstrap/store_link.h"
#include "transport/cause.h"
#include "transport/hexadecimal.h"
#include "transport/machine.h"
#include "transport/number.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <sys/stat.h>
#include <unistd.h>

namespace tsprun::detail::bootstrap {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::string_view kPlanKey = "plan";
constexpr std::string_view kYes = "yes ";
constexpr std::string_view kNo = "no ";
/// Separates the machine from TSP_NODE.
constexpr char kBetween = '/';
/// Time beyond the deadline that ranks give rank 0 to say who is missing.
constexpr std::uint64_t kGrace_ns = 2'000'000'000;
constexpr std::size_t kShown = 20;

std::string place_key(int rank) { return fmt::format("place/{}", rank); }

std::optional<std::string> get(KeyValue& store, const std::string& key, std::uint64_t deadline_ns) {
  const std::uint64_t now = posix::now_ns();
  const milliseconds left = std::chrono::duration_cast<milliseconds>(nanoseconds(deadline_ns > now ? deadline_ns - now : 0));
  const std::optional<std::vector<std::byte>> value = store.get(key, left);
  return value ? std::optional(text_of(*value)) : std::nullopt;
}

std::string listed(const std::vector<int>& ranks) {
  const std::span<const int> shown = std::span(ranks).first(std::min(ranks.size(), kShown));
  return fmt::format("rank{} {}{}", ranks.size() == 1 ? "" : "s", fmt::join(shown, ", "),
                     ranks.size() > kShown ? fmt::format(" and {} more", ranks.size() - kShown) : "");
}

/// Shows the others what rank 0 has answered, whatever becomes of this rank: they are in their fence.
void show_refusal(KeyValue& store) noexcept {
  try {
    store.fence();
  } catch (...) {
    // The refusal is what counts.
  }
}

/// Waits for all ranks' machines. Throws Error(stalled).
std::vector<std::string> machines(int size, KeyValue& store, std::uint64_t timeout_ns) {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  std::vector<std::string> names;
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    const std::optional<std::string> name = get(store, place_key(rank), deadline);
    if (!name) missing.push_back(rank);
    names.push_back(name.value_or(""));
  }
  if (!missing.empty()) {
    throw Error(Cause::stalled,
                fmt::format("{} of {} didn't come within {:g} s (TSP_TIMEOUT)", listed(missing), size,
                            static_cast<double>(timeout_ns) * 1e-9),
                missing.front());
  }
  return names;
}

/// Returns the number of nodes. Throws Error(refused) if their ranks aren't the blocks of placement.h.
int nodes_of(const std::vector<std::string>& names) {
  const auto size = static_cast<int>(names.size());
  const auto nodes = static_cast<int>(std::set<std::string>(names.begin(), names.end()).size());
  for (int rank = 0; rank < size; ++rank) {
    const int first = block_of(size, nodes, node_of(size, nodes, rank)).first;
    if (names[static_cast<std::size_t>(rank)] == names[static_cast<std::size_t>(first)]) continue;
    const auto together = [&](int with) {
      std::vector<int> ranks;
      for (int other = 0; other < size; ++other) {
        if (names[static_cast<std::size_t>(other)] == names[static_cast<std::size_t>(with)]) ranks.push_back(other);
      }
      return listed(ranks);
    };
    throw Error(
        Cause::refused,
        fmt::format("{} ranks are on {} nodes, {} on one and {} on another: number them node by node, as many on each node as on "
                    "the others, or one more on the first",
                    size, nodes, together(first), together(rank)));
  }
  return nodes;
}

/// Throws the error in which rank 0's answer consists, if it is one.
void throw_refusal(std::string_view text) {
  if (!text.starts_with(kNo)) return;
  text.remove_prefix(kNo.size());
  const auto cause = number_from<std::uint8_t>(take_word(text, ' '));
  const auto rank = number_from<int>(take_word(text, ' '));
  throw Error(cause && is_cause(*cause) ? static_cast<Cause>(*cause) : Cause::refused, std::string(text), rank.value_or(-1));
}

Plan answered_plan(int size, KeyValue& store, std::uint64_t timeout_ns, const std::function<void(Plan&)>& open) {
  const std::string key(kPlanKey);
  try {
    const std::vector<std::string> names = machines(size, store, timeout_ns);
    std::array<std::byte, 16> random{};
    fill_random(random);
    Plan plan{.nodes = nodes_of(names), .job = hexadecimal(random)};
    const std::string machine = names[0].substr(0, names[0].find(kBetween));
    plan.one_machine = std::ranges::all_of(names, [&](const std::string& name) { return name.starts_with(machine + kBetween); });
    if (plan.nodes > 1) {
      plan.secret = random_secret();
      open(plan);
    }
    store.set(key, bytes_of(fmt::format("{}{}", kYes, plan.text())));
    return plan;
  } catch (const Error& error) {
    store.set(key, bytes_of(fmt::format("{}{} {} {}", kNo, static_cast<int>(error.cause()), error.rank(), error.what())));
    throw;
  }
}

}  // namespace

std::string Plan::text() const {
  const std::string proof = nodes > 1 ? hexadecimal(secret.bytes()) : "-";
  return fmt::format("{} {} {} {} {} {}", nodes, one_machine ? 1 : 0, job, proof, static_cast<std::uint32_t>(inter),
                     fmt::join(stores, " "));
}

Plan Plan::parse(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) words.emplace_back(take_word(text, ' '));
  Plan plan;
  plan.nodes = words.size() < 5 ? 0 : number_from<int>(words[0]).value_or(0);
  const bool several = plan.nodes > 1;
  const std::optional<std::uint32_t> inter = words.size() < 5 ? std::nullopt : number_from<std::uint32_t>(words[4]);
  const auto secret = several ? from_hexadecimal(words[3]) : std::nullopt;
  if (plan.nodes < 1 || several != (secret && secret->size() == Secret::kBytes) || several != (words.size() > 5) || !inter)
    throw Error(Cause::corrupt, "what rank 0 left in the store isn't how ranks meet: have all ranks the same version?");
  plan.one_machine = words[1] == "1";
  plan.job = words[2];
  plan.inter = static_cast<Demand>(*inter);  // describe_job() checks it
  plan.stores.assign(words.begin() + 5, words.end());
  if (several) plan.secret = Secret(std::span<const std::byte, Secret::kBytes>(*secret));
  return plan;
}

std::string machine_name(std::string_view node) {
  std::string text = fmt::format("{} {}", machine::boot_identity(), ::getuid());
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    struct stat of {};
    text += ::stat(space, &of) == 0 ? fmt::format(" {}", of.st_ino) : " -";
  }
  return fmt::format("{}{}{}", text, kBetween, node);
}

Plan call_roll(int rank, int size, const std::string& machine, KeyValue& store, std::uint64_t timeout_ns,
               const std::function<void(Plan&)>& open) {
  store.set(place_key(rank), bytes_of(machine));
  store.fence();
  if (rank == 0) {
    Plan plan = [&] {
      try {
        return answered_plan(size, store, timeout_ns, open);
      } catch (...) {
        show_refusal(store);
        throw;
      }
    }();
    store.fence();
    return plan;
  }
  store.fence();
  const bool came = get(store, place_key(0), posix::now_ns() + timeout_ns).has_value();
  const std::optional<std::string> answer =
      came ? get(store, std::string(kPlanKey), posix::now_ns() + timeout_ns + kGrace_ns) : std::nullopt;
  if (!answer) {
    throw Error(Cause::stalled,
                fmt::format("rank 0 of {} {} within {:g} s (TSP_TIMEOUT)", size, came ? "came, but told nothing" : "didn't come",
                            static_cast<double>(timeout_ns) * 1e-9),
                0);
  }
  throw_refusal(*answer);
  Plan plan = Plan::parse(std::string_view(*answer).substr(std::min(kYes.size(), answer->size())));
  if (plan.nodes > size)
    throw Error(Cause::corrupt, fmt::format("rank 0 tells of {} nodes, but there are {} ranks", plan.nodes, size), 0);
  return plan;
}

}  // namespace tsprun::detail::bootstrap
