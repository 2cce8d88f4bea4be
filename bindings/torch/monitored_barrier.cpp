// monitored_barrier: every rank leaves a key in the store, and rank 0 a verdict. Keys are looked at now and then, since
// a store's wait can't be ended by a failure of the job, which these waits throw.
#include "process_group.h"
#include "work.h"

#include <numeric>

namespace tsprun::torch_binding {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void TsprunGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const milliseconds limit = options.timeout.count() < 0 ? timeout_.load() : options.timeout;
  const steady_clock::time_point begin = steady_clock::now();
  const auto key = [&](const std::string& what) {
    return "monitored/" + std::to_string(life_) + "/" + std::to_string(monitored_) + "/" + what;
  };
  const auto has = [&](const std::string& what) { return store_->check({key(what)}); };
  const auto set = [&](const std::string& what, const std::string& text) {
    store_->set(key(what), std::vector<std::uint8_t>(text.begin(), text.end()));
  };
  Pause pause;
  const auto wait_a_little = [&] {
    try {
      member_->progress()->use([](Context& context) { context.tick(); });
    } catch (const Error&) {
      std::rethrow_exception(as_torch_error(name_ + ":monitored_barrier", std::current_exception()));
    }
    pause.sleep();
  };
  const std::string mine = std::to_string(getRank());
  static const std::string kPassed = "passed";

  ++monitored_;
  if (getRank() == 0) {
    TORCH_CHECK(limit.count() > 0, "Rank 0 timed out in monitoredBarrier after ", limit.count(), " ms.");
    std::vector<int> missing(static_cast<std::size_t>(getSize() - 1));
    std::iota(missing.begin(), missing.end(), 1);
    set(mine, "here");
    for (;;) {
      std::erase_if(missing, [&](int rank) { return has(std::to_string(rank)); });
      if (missing.empty() || steady_clock::now() - begin >= limit) break;
      wait_a_little();
    }
    if (missing.empty()) return set("verdict", kPassed);
    if (!wait_all_ranks) missing.erase(missing.begin() + 1, missing.end());
    std::string text = ranks(missing) + " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms";
    text.front() = 'R';
    set("verdict", text);
    TORCH_CHECK(false, text);
  }
  // A barrier that has failed is over: a rank that missed it takes part in the next.
  while (has("verdict")) ++monitored_;
  set(mine, "here");
  while (!has("verdict")) {
    const auto waited = steady_clock::now() - begin;
    // Rank 0 may have begun later, and tells who is missing when its own time is up.
    TORCH_CHECK(
        waited < limit || (has("0") && waited < 2 * limit + milliseconds(1000)), "Rank ", mine,
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: it didn't come in ",
        limit.count(), " ms");
    wait_a_little();
  }
  const std::vector<std::uint8_t> verdict = store_->get(key("verdict"));
  const std::string text(verdict.begin(), verdict.end());
  TORCH_CHECK(text == kPassed, "Rank ", mine,
              " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: ", text);
}

}  // namespace tsprun::torch_binding
