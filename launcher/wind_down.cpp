// Maps the page that ranks share.
#include "launcher/wind_down.h"

#include "transport/cause.h"

#include <cerrno>
#include <new>
#include <sys/mman.h>

namespace tsprun::detail::launcher {

WindDown::WindDown(std::uint64_t within_ns) : within_ns_(within_ns) {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error(Cause::refused, "a page of memory to share with ranks", errno);
  page_ = new (memory) Page{};
}

WindDown::~WindDown() { ::munmap(page_, sizeof(Page)); }

}  // namespace tsprun::detail::launcher
