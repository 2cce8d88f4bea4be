// Writes messages in the binary format of Protocol Buffers (proto3): fields with a number, as varints or as bytes with a length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// A message that is being written, as its bytes.
class ProtobufMessage {
 public:
  /// Adds a field of type uint64, int64 (of a value that isn't negative), int32 (likewise), bool or an enumeration.
  ProtobufMessage& number(int field, std::uint64_t value) {
    tag(field, kVarint);
    varint(value);
    return *this;
  }
  /// Adds a field of type string or bytes.
  ProtobufMessage& text(int field, std::string_view value) {
    tag(field, kBytes);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  /// Adds a field that is a message.
  ProtobufMessage& message(int field, const ProtobufMessage& value) { return text(field, value.bytes_); }
  /// Adds a repeated field of uint64.
  ProtobufMessage& numbers(int field, std::span<const std::uint64_t> values) {
    if (values.empty()) return *this;
    ProtobufMessage packed;
    for (const std::uint64_t value : values) packed.varint(value);
    return message(field, packed);
  }
  /// Returns the message behind its length, as files hold several.
  std::string with_length() const {
    ProtobufMessage whole;
    whole.varint(bytes_.size());
    return whole.bytes_ + bytes_;
  }

 private:
  static constexpr std::uint64_t kVarint = 0;
  static constexpr std::uint64_t kBytes = 2;

  void tag(int field, std::uint64_t type) { varint(static_cast<std::uint64_t>(field) << 3 | type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

}  // namespace tsprun::detail::launcher
