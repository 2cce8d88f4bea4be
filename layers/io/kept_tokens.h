// Tokens of a long text, kept in a file beside it, so that the text becomes tokens once. All numbers are little-endian:
//
//   0 ┌────────────────┬──────────────────────┬───────────────────────┬───────────┬─────────────────┐
//     │ "tsprunTK"     │ key: of what they    │ XXH3-128 of the ids   │ n, u64    │ n ids of 4 bytes│
//     │                │ follow from, 16 B    │                       │           │                 │
//     └────────────────┴──────────────────────┴───────────────────────┴───────────┴─────────────────┘
//     0                8                      24                      40          48
//
// The file is hidden and bears the key's first half, ".book.txt.0123456789abcdef.tokens", so that another tokenizer's tokens lie
// beside it. It appears whole or not at all, and whoever may read or write the text may read or write it.
#pragma once

#include "layers/io/data.h"
#include "layers/io/digest.h"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// The file of a text's tokens.
class KeptTokens {
 public:
  /// Names the file. `key`: the checksum of all that the tokens follow from.
  KeptTokens(const std::filesystem::path& text, const Digest& key);

  const std::filesystem::path& path() const { return path_; }
  /// Returns the tokens; nothing if the file isn't there, isn't whole, or was changed, or if it belongs neither to the text's
  /// owner nor to this process's user: the key is no secret, and in a folder like /tmp anybody may make files.
  std::optional<std::vector<Token>> read() const;
  /// Writes the file. Throws Error(refused) with the cause if it can't be written.
  void write(std::span<const Token> ids) const;

 private:
  bool is_trusted(const posix::UniqueFd& file) const;

  std::filesystem::path text_;
  std::filesystem::path path_;
  Digest key_;
};

}  // namespace tsprun::detail
