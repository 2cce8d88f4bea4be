// Address space that costs nothing until it is touched: where a phantom rank's tensors lie, which are booked but never computed.
#pragma once

#include <cstddef>
#include <span>

namespace tsprun {

class AddressSpace {
 public:
  AddressSpace() = default;
  /// As much as the machine grants of `bytes`: halves until it does, at least a GiB, else Error(out_of_memory).
  explicit AddressSpace(std::size_t bytes);
  AddressSpace(AddressSpace&& other) noexcept;
  AddressSpace& operator=(AddressSpace&&) = delete;
  ~AddressSpace();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace tsprun
