// The header of a .npy file, numpy's format for one array: magic, version, and a Python dictionary that says type, order and
// shape.
//
//   "\x93NUMPY" · u8 major · u8 minor · u16 (major 1) or u32 length of the dictionary, little-endian · dictionary · the numbers
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace tsprun::detail {

/// Type and place of the numbers in a .npy file of one dimension.
struct NpyArray {
  std::string type;         ///< as numpy writes it, "<i4": byte order, kind, bytes
  std::uint64_t first = 0;  ///< byte at which the numbers begin
  std::uint64_t count = 0;  ///< numbers
};

/// Reads the header. Throws Error(refused): it is damaged, of a version that isn't known (1 to 3 are), of more than 64 KiB, or of
/// an array that hasn't one dimension or isn't one of plain numbers. Doesn't look at the numbers.
NpyArray read_npy(const posix::UniqueFd& file, const std::filesystem::path& path);

}  // namespace tsprun::detail
