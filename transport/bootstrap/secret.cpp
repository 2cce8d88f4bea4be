// Keeps secrets in hidden pages, and derives and compares them with libcrypto (SHA-256, HKDF).
#include "transport/bootstrap/secret.h"

#include "transport/cause.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace tsprun::detail::bootstrap {

namespace {

constexpr std::array<std::byte, Secret::kBytes> kEmptySecret{};
/// More than libcrypto's functions use.
constexpr std::size_t kWipedStack = 16384;

const unsigned char* unsigned_chars(const void* bytes) { return static_cast<const unsigned char*>(bytes); }
unsigned char* unsigned_chars(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

}  // namespace

Secret::Secret(std::span<const std::byte, kBytes> bytes)
    : Secret(made_by([&](std::span<std::byte, kBytes> own) { std::copy(bytes.begin(), bytes.end(), own.begin()); })) {}

std::span<const std::byte, Secret::kBytes> Secret::bytes() const {
  if (page_ == nullptr) return kEmptySecret;
  return page_->bytes().first<kBytes>();
}

bool operator==(const Secret& one, const Secret& other) {
  return ::CRYPTO_memcmp(one.bytes().data(), other.bytes().data(), Secret::kBytes) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  if (::RAND_bytes(unsigned_chars(bytes), static_cast<int>(bytes.size())) != 1)
    throw Error(Cause::refused, "libcrypto has no random bytes for the job's secret");
}

Secret random_secret() {
  Secret made = Secret::made_by([](std::span<std::byte> own) { fill_random(own); });
  wipe_stack();
  return made;
}

Secret secret_from_text(std::string_view text) {
  Secret made = Secret::made_by([&](std::span<std::byte> own) {
    if (::EVP_Digest(text.data(), text.size(), unsigned_chars(own), nullptr, ::EVP_sha256(), nullptr) != 1)
      throw Error(Cause::refused, "libcrypto can't compute SHA-256");
  });
  wipe_stack();
  return made;
}

Secret derive(const Secret& secret, std::string_view label, std::span<const std::byte> salt, std::span<const std::byte> context) {
  Secret made = Secret::made_by([&](std::span<std::byte> own) {
    const std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> kdf(::EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                                                     ::EVP_PKEY_CTX_free);
    const auto add = [&](const void* bytes, std::size_t size) {
      return ::EVP_PKEY_CTX_add1_hkdf_info(kdf.get(), unsigned_chars(bytes), static_cast<int>(size)) == 1;
    };
    std::size_t size = own.size();
    const bool done =
        kdf != nullptr && ::EVP_PKEY_derive_init(kdf.get()) == 1 && ::EVP_PKEY_CTX_set_hkdf_md(kdf.get(), ::EVP_sha256()) == 1 &&
        ::EVP_PKEY_CTX_set1_hkdf_salt(kdf.get(), unsigned_chars(salt.data()), static_cast<int>(salt.size())) == 1 &&
        ::EVP_PKEY_CTX_set1_hkdf_key(kdf.get(), unsigned_chars(secret.bytes().data()), static_cast<int>(Secret::kBytes)) == 1 &&
        add(label.data(), label.size()) && (context.empty() || add(context.data(), context.size())) &&
        ::EVP_PKEY_derive(kdf.get(), unsigned_chars(own), &size) == 1 && size == own.size();
    if (!done) throw Error(Cause::refused, "libcrypto can't compute HKDF-SHA-256");
  });
  wipe_stack();
  return made;
}

[[gnu::noinline]] void wipe_stack() {
  std::array<std::byte, kWipedStack> below;
  ::explicit_bzero(below.data(), below.size());
}

}  // namespace tsprun::detail::bootstrap
