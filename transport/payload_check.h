// The check of payloads that a transport makes by itself: the seam between arriving and being whole, at which decorators stand
// that must be below the check.
#pragma once

#include "transport/checksum.h"
#include "transport/message.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Compares payloads with the hashes that came with them, before anybody uses them.
class PayloadCheck {
 public:
  PayloadCheck() = default;
  PayloadCheck(const PayloadCheck&) = delete;
  PayloadCheck& operator=(const PayloadCheck&) = delete;
  virtual ~PayloadCheck() = default;

  /// Returns true if these bytes of message `ticket`, which begin at its byte `at`, have this XXH3 hash. A decorator may change
  /// them before.
  virtual bool is_whole(LaneId /*lane*/, Ticket /*ticket*/, std::uint64_t /*at*/, std::span<std::byte> payload,
                        std::uint64_t hash) {
    return checksum(payload) == hash;
  }

  /// Returns the check that does nothing else.
  static PayloadCheck& plain() {
    static PayloadCheck check;
    return check;
  }
};

}  // namespace tsprun::detail
