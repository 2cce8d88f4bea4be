// AMX's instructions.
#include "core/kernels/amx_product.h"

#include "core/kernels/pair_target.h"

#include <stdexcept>

#if HWY_ARCH_X86_64

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TSP_TILES_ATTR __attribute__((target(TSP_PAIRS_TARGET ",amx-tile,amx-bf16")))
#include "core/kernels/tile_product-inl.h"

namespace tsprun::detail::kernels::amx {

namespace {

using pairs::kTileSide;

/// Memory operand of LDTILECFG (Intel's Software Developer's Manual, volume 2, at this instruction).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig;

/// The instructions name tiles in their text, so each number has its line.
struct AmxTiles {
  TSP_TILES_ATTR static void begin() { _tile_loadconfig(&kConfig); }
  TSP_TILES_ATTR static void end() { _tile_release(); }

  template <int kTile>
  TSP_TILES_ATTR static void zero() {
    if constexpr (kTile == 0) _tile_zero(0);
    if constexpr (kTile == 1) _tile_zero(1);
    if constexpr (kTile == 2) _tile_zero(2);
    if constexpr (kTile == 3) _tile_zero(3);
  }
  template <int kTile>
  TSP_TILES_ATTR static void load(const void* from, std::size_t step) {
    asm volatile("" ::: "memory");  // g++ 12 doesn't know that the instruction reads memory; so after it, too
    if constexpr (kTile == 0) _tile_loadd(0, from, step);
    if constexpr (kTile == 1) _tile_loadd(1, from, step);
    if constexpr (kTile == 2) _tile_loadd(2, from, step);
    if constexpr (kTile == 3) _tile_loadd(3, from, step);
    if constexpr (kTile == 4) _tile_loadd(4, from, step);
    if constexpr (kTile == 5) _tile_loadd(5, from, step);
    if constexpr (kTile == 6) _tile_loadd(6, from, step);
    if constexpr (kTile == 7) _tile_loadd(7, from, step);
    asm volatile("" ::: "memory");
  }
  template <int kTile>
  TSP_TILES_ATTR static void store(void* to, std::size_t step) {
    if constexpr (kTile == 0) _tile_stored(0, to, step);
    if constexpr (kTile == 1) _tile_stored(1, to, step);
    if constexpr (kTile == 2) _tile_stored(2, to, step);
    if constexpr (kTile == 3) _tile_stored(3, to, step);
  }
  template <int kC, int kA, int kB>
  TSP_TILES_ATTR static void multiply() {
    if constexpr (kC == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kC == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kC == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kC == 3) _tile_dpbf16ps(3, 5, 7);
    static_assert(kA == 4 + kC / 2 && kB == 6 + kC % 2);
  }
  TSP_TILES_ATTR static void turn(bf16* to, std::size_t step, const bf16* from, std::size_t rows, std::size_t pairs) {
    __m512i block[kTileSide];
    for (std::size_t i = 0; i < kTileSide; ++i) {
      block[i] =
          i < pairs ? _mm512_maskz_loadu_epi32(pairs::mask16(rows), from + i * 2 * pairs::kPairRows) : _mm512_setzero_si512();
    }
    pairs::turn(block);
    for (std::size_t i = 0; i < kTileSide; ++i) _mm512_storeu_si512(to + i * step, block[i]);
  }
};

}  // namespace

TSP_TILES_ATTR void multiply(const pairs::PairProduct& product) { pairs::TileProduct<AmxTiles>(product).run(); }

bool offered() {
  static const bool permitted = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    constexpr unsigned kBf16 = 1U << 22;
    constexpr unsigned kTile = 1U << 24;
    if ((edx & kBf16) == 0 || (edx & kTile) == 0) return false;
    constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return permitted;
}

}  // namespace tsprun::detail::kernels::amx

#else

namespace tsprun::detail::kernels::amx {
bool offered() { return false; }
void multiply(const pairs::PairProduct& /* product */) { throw std::logic_error("no AMX"); }
}  // namespace tsprun::detail::kernels::amx

#endif
