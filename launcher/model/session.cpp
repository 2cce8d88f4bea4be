#include "launcher/model/session.h"

#include "launcher/model/layouts.h"
#include "launcher/model/trace_file.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace tsp::launcher {

namespace {

/// The lowest of all ranks' levels. A gather: no kernel may run before the level is known.
kernels::Level common_level(Communicator& world) {
  const auto mine = static_cast<std::byte>(kernels_of_this_process());
  std::vector<std::byte> all(static_cast<std::size_t>(world.size()));
  world.all_gather(ConstBuffer(&mine, 1, DType::byte), Buffer(all.data(), all.size(), DType::byte));
  return static_cast<kernels::Level>(*std::min_element(all.begin(), all.end()));
}

}  // namespace

kernels::Level kernels_of_this_process() {
  const char* text = std::getenv("TSP_KERNELS");
  return text == nullptr ? kernels::best_level() : kernels::level_from_name(text).value_or(kernels::best_level());
}

Session::Session(Context& context, ReportSink& sink, const GlobalOptions& global)
    : context_(context), sink_(sink), global_(global) {
  const kernels::Level level = common_level(context.world());
  kernels::set_level(level);
  if (speaks()) sink_.set("kernels", std::string(kernels::name(level)));
  if (!global.trace.empty()) trace_.emplace();
  rank_.emplace(context, RankOptions{.threads = static_cast<std::size_t>(global.threads), .trace = trace_ ? &*trace_ : nullptr});
  mesh_.emplace(context.world(), mesh_shape(global));
}

void Session::finish() {
  if (!trace_) return;
  context_.engine().observe(nullptr);
  const std::string trouble = write_trace(context_, *trace_, global_.faults, global_.trace);
  if (!trouble.empty() && speaks()) sink_.set(kTraceTrouble, trouble);
}

}  // namespace tsp::launcher
