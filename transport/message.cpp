// Names of streams and purposes.
#include "transport/message.h"

#include <array>

namespace tsprun {

namespace {
constexpr std::array<std::string_view, detail::kQueues> kStreamNames = {"control", "weights", "kv", "gradients", "tagged"};
constexpr std::array<std::string_view, kPurposes + 1> kPurposeNames = {"weights",   "kv",   "activations", "gradients",
                                                                       "embedding", "head", "other",       "none"};
}  // namespace

std::string_view name(Stream stream) {
  const auto index = static_cast<std::size_t>(stream);
  return index < kStreamNames.size() ? kStreamNames[index] : "unknown";
}

std::string_view name(Purpose purpose) {
  const auto index = static_cast<std::size_t>(purpose);
  return index < kPurposeNames.size() ? kPurposeNames[index] : "unknown";
}

}  // namespace tsprun
