// Decodes tags for error messages.
#include "core/streams/tag.h"

#include <fmt/format.h>

namespace tsprun::detail {

std::string describe_tag(std::uint32_t tag) {
  const std::uint32_t op = tag & 0xff;
  const std::uint32_t dtype = tag >> 8 & 0xf;
  const std::uint32_t reduction = tag >> 12 & 0xf;
  if (op >= kOps || dtype >= kDTypeCount || reduction >= kReductionCount) {
    return fmt::format("an unknown kind (tag {:#010x})", tag);
  }
  const Op operation = static_cast<Op>(op);
  const bool reduces = operation == Op::reduce || operation == Op::reduce_scatter || operation == Op::all_reduce;
  return fmt::format("{} of {}{}", name(operation), name(static_cast<DType>(dtype)),
                     reduces ? fmt::format(" ({})", name(static_cast<Reduction>(reduction))) : "");
}

}  // namespace tsprun::detail
