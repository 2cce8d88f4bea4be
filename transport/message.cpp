// Names of streams and purposes.
#include "transport/message.h"

#include "transport/names.h"

#include <array>

namespace tsprun {

namespace {
constexpr std::array<std::string_view, detail::kQueues> kStreamNames = {"control", "weights", "kv", "gradients", "tagged"};
constexpr std::array<std::string_view, kPurposes + 2> kPurposeNames = {
    "weights", "kv", "activations", "gradients", "embedding", "head", "other", "none", "unasked"};
}  // namespace

std::string_view name(Stream stream) { return detail::name_in(kStreamNames, stream); }
std::string_view name(Purpose purpose) { return detail::name_in(kPurposeNames, purpose); }

}  // namespace tsprun
