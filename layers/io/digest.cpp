// Hashes blocks with XXH3-128 in pieces, and prints digests.
#include "layers/io/digest.h"

#include "layers/io/file.h"
#include "transport/xxhash.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace tsprun::detail {

namespace {

constexpr std::size_t kHashedPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kDigits = 2 * sizeof(Digest);

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Digest result;
  static_assert(sizeof(bytes) == sizeof(result));
  std::transform(std::begin(bytes.digest), std::end(bytes.digest), result.begin(), [](unsigned char c) { return std::byte{c}; });
  return result;
}

}  // namespace

Digest digest(std::span<const std::byte> bytes) { return canonical(XXH3_128bits(bytes.data(), bytes.size())); }

bool is_hexadecimal_digest(std::string_view text) {
  return text.size() == kDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::uint64_t digest_blocks(std::uint64_t file_bytes) {
  return std::max<std::uint64_t>(1, file_bytes / kDigestBlockBytes + (file_bytes % kDigestBlockBytes != 0 ? 1 : 0));
}

Digest digest_block(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes, std::uint64_t block,
                    const std::function<void()>& tick) {
  const std::uint64_t first = block * kDigestBlockBytes;
  const std::uint64_t end = std::min(file_bytes, first + kDigestBlockBytes);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (!state || XXH3_128bits_reset(state.get()) != XXH_OK) throw std::bad_alloc();
  std::vector<std::byte> piece(std::min<std::uint64_t>(kHashedPieceBytes, end - std::min(first, end)));
  for (std::uint64_t at = first; at < end; at += piece.size()) {
    const auto bytes = std::span(piece).first(std::min<std::uint64_t>(piece.size(), end - at));
    file::read(file, path, at, bytes);
    XXH3_128bits_update(state.get(), bytes.data(), bytes.size());
    tick();
  }
  return canonical(XXH3_128bits_digest(state.get()));
}

Digest digest_of_blocks(std::span<const Digest> blocks) {
  return blocks.size() == 1 ? blocks.front() : digest(std::as_bytes(blocks));
}

Digest digest_file(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes) {
  std::vector<Digest> blocks(digest_blocks(file_bytes));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = digest_block(file, path, file_bytes, i, [] {});
  return digest_of_blocks(blocks);
}

}  // namespace tsprun::detail
