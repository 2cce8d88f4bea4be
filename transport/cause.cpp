// Names and explanations of causes, generated from the table in tsprun/error.h.
#include "transport/cause.h"

#include <fmt/format.h>

#include <cstring>

namespace tsprun {

using namespace detail;

namespace {
struct CauseText {
  std::string_view name;
  std::string_view explanation;
};
constexpr CauseText kCauses[] = {
#define TSP_X(name, text) {#name, text},
    TSP_CAUSES(TSP_X)
#undef TSP_X
};
}  // namespace

std::string_view name(Cause cause) { return kCauses[static_cast<std::size_t>(cause)].name; }
std::string_view explanation(Cause cause) { return kCauses[static_cast<std::size_t>(cause)].explanation; }
namespace detail {

bool is_cause(std::uint8_t value) { return value < std::size(kCauses); }

Error system_error(Cause cause, const std::string& what, int errno_value) {
  return Error(cause, fmt::format("{}: {}", what, std::strerror(errno_value)));
}

}  // namespace detail
}  // namespace tsprun
