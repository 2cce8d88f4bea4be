// Maps the page that ranks share.
#include "launcher/wind_down.h"

#include "transport/cause.h"

#include <cerrno>
#include <new>

namespace tsprun::detail::launcher {

WindDown::WindDown(std::uint64_t within_ns, int save_signal)
    : within_ns_(within_ns), save_signal_(save_signal), memory_(sizeof(Page), MAP_SHARED | MAP_ANONYMOUS) {
  if (!memory_) throw system_error(Cause::refused, "a page of memory to share with ranks", errno);
  page_ = new (memory_.bytes().data()) Page{};
}

}  // namespace tsprun::detail::launcher
