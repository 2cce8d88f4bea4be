// Names of streams and purposes.
#include "transport/message.h"

#include "transport/names.h"

#include <array>

namespace tsprun {

namespace {
constexpr std::array<std::string_view, detail::kQueues> kStreamNames = {"control", "weights", "kv", "gradients", "tagged"};
constexpr std::array<std::string_view, kPurposes + 2> kPurposeNames = {
    "weights", "kv", "activations", "gradients", "embedding", "head", "other", "none", "unasked"};
static_assert(kPurposes == static_cast<int>(Purpose::none) && kPurposes + 1 == static_cast<int>(Purpose::unasked),
              "the purposes that are reported come before the others, and kPurposes is their number");
static_assert(!kPurposeNames.back().empty() && !kStreamNames.back().empty(), "each purpose and each stream has a name");
}  // namespace

std::string_view name(Stream stream) { return detail::name_in(kStreamNames, stream); }
std::string_view name(Purpose purpose) { return detail::name_in(kPurposeNames, purpose); }

}  // namespace tsprun
