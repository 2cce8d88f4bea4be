// The job's secret, and keys derived from it. Anyone who knows it may act as the job, and many jobs may share it, so no core dump
// may hold it. Its bytes lie in a page that dumps leave out, to which all copies of a Secret refer; code that computes with them
// must leave no copy elsewhere.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace tsprun::detail::bootstrap {

/// A secret of 32 bytes that is never changed. Copies share one page, which is wiped when the last of them goes. It can't be
/// printed.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  /// Makes the empty secret, 32 zero bytes: that of a job which proves nothing.
  Secret() = default;
  /// Copies the bytes. The caller's own stay where they are. Throws Error(out_of_memory).
  explicit Secret(std::span<const std::byte, kBytes> bytes);
  /// Makes a secret in place: `fill` writes its bytes. Throws Error(out_of_memory), and what `fill` throws.
  template <class Fill>
  static Secret made_by(Fill fill) {
    const auto page = std::make_shared<posix::HiddenMemory>(kBytes);
    fill(page->bytes().first<kBytes>());
    Secret made;
    made.page_ = page;
    return made;
  }

  /// Returns the bytes, valid as long as a copy of this secret is. Don't copy them.
  std::span<const std::byte, kBytes> bytes() const;

  /// Compares in a time that doesn't depend on the bytes.
  friend bool operator==(const Secret& one, const Secret& other);

 private:
  std::shared_ptr<const posix::HiddenMemory> page_;  ///< null: the empty secret
};

/// Fills with random bytes that nobody can foretell. Throws Error(refused) if libcrypto has none.
void fill_random(std::span<std::byte> bytes);
/// Returns a fresh random secret. Throws Error(refused) if libcrypto has no random bytes.
Secret random_secret();
/// Returns the secret of a job whose nodes share a text (any length but empty): the SHA-256 hash of the text.
Secret secret_from_text(std::string_view text);

/// Derives another secret from this one: HKDF-SHA-256 (RFC 5869) with `salt`, and `label` and `context` as info. Neither secret
/// can be computed from the other without the rest. Throws Error(refused) if libcrypto fails.
Secret derive(const Secret& secret, std::string_view label, std::span<const std::byte> salt,
              std::span<const std::byte> context = {});

/// Overwrites the stack below the caller's frame, where libcrypto's functions leave what they computed with. Call it after each
/// that was given a secret.
void wipe_stack();

}  // namespace tsprun::detail::bootstrap
