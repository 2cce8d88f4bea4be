// $COLUMNS goes before the terminal's own width, as POSIX has it (XBD 8.3).
#include "launcher/columns.h"

#include "transport/number.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

std::optional<std::size_t> known_columns() {
  if (const char* text = std::getenv("COLUMNS"); text != nullptr) {
    const std::optional<std::int64_t> number = number_from<std::int64_t>(std::string_view(text));
    if (number && *number > 0) return std::max(static_cast<std::size_t>(*number), kFewestColumns);
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  return std::max<std::size_t>(size.ws_col > 0 ? size.ws_col : kUsualColumns, kFewestColumns);
}

}  // namespace tsprun::detail::launcher
