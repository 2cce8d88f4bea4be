// Reserved address space that takes no memory until it is touched. A phantom rank places its tensors there: they need addresses,
// but kernels don't write them.
#pragma once

#include <cstddef>
#include <span>

namespace tsprun::detail {

/// Owns a private, writable mapping without reserved memory (mmap with MAP_NORESERVE).
class AddressSpace {
 public:
  AddressSpace() = default;
  /// Maps `bytes`, or half as much, a quarter, …, whatever the system grants first. Throws Error(out_of_memory) if it doesn't
  /// grant at least 1 GiB.
  explicit AddressSpace(std::size_t bytes);
  /// Does the same with memory that nobody may touch: reading or writing it ends the process with SIGSEGV.
  static AddressSpace unreadable(std::size_t bytes);
  AddressSpace(AddressSpace&& other) noexcept;
  AddressSpace& operator=(AddressSpace&&) = delete;
  ~AddressSpace();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  AddressSpace(std::size_t bytes, int protection);
  std::span<std::byte> bytes_;
};

}  // namespace tsprun::detail
