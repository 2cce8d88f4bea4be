// Types that describe a call: elements (DType), views of buffers, reductions, operations, algorithms, streams, and the purposes
// by which traffic is counted. All are plain values, free to be copied and used by any thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun {

// --- elements and buffers ----------------------------------------------------------------------------------------------------

// X(enumerator, bytes of an element, name)
#define TSPRUN_DTYPES(X) \
  X(byte, 1, "bytes")    \
  X(bf16, 2, "bf16")     \
  X(f32, 4, "f32")       \
  X(f64, 8, "f64")       \
  X(f16, 2, "f16")       \
  X(i8, 1, "i8")         \
  X(u8, 1, "u8")         \
  X(i32, 4, "i32")       \
  X(i64, 8, "i64")       \
  X(boolean, 1, "bool")

/// Type of the elements of a buffer or tensor. `byte` is for data without arithmetic. A `boolean` is a byte that is 0 or 1.
enum class DType : std::uint8_t {
#define TSPRUN_X(dtype, bytes, text) dtype,
  TSPRUN_DTYPES(TSPRUN_X)
#undef TSPRUN_X
};

namespace detail {
inline constexpr std::uint8_t kElementBytes[] = {
#define TSPRUN_X(dtype, bytes, text) bytes,
    TSPRUN_DTYPES(TSPRUN_X)
#undef TSPRUN_X
};
}  // namespace detail
/// Number of element types.
inline constexpr int kDTypeCount = sizeof detail::kElementBytes;

/// Returns the size of an element in bytes.
constexpr std::size_t size_of(DType dtype) { return detail::kElementBytes[static_cast<std::size_t>(dtype)]; }
/// Returns true for types of numbers with a fraction: bf16, f16, f32 and f64.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64;
}
/// Returns the type's name: "f32"; "bytes" of DType::byte, "bool" of DType::boolean.
std::string_view name(DType dtype);
/// Returns the type with this name; none if there is no such type.
std::optional<DType> dtype_from_name(std::string_view text);

/// Brain floating point (bfloat16): the upper 16 bits of an f32. For storage only; arithmetic is done in f32.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);  ///< rounds to nearest, ties to even; NaN becomes a quiet NaN
  explicit operator float() const;
  bool operator==(const bf16&) const = default;  ///< compares bits
};
static_assert(sizeof(bf16) == 2);

/// IEEE 754 half precision (binary16). For storage only; arithmetic is done in f32.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float value);  ///< rounds to nearest, ties to even; NaN becomes a quiet NaN
  explicit operator float() const;
  bool operator==(const f16&) const = default;  ///< compares bits
};
static_assert(sizeof(f16) == 2);

/// C++ types that have a DType. std::byte and char stand for DType::byte.
template <class T>
concept Element = std::same_as<T, std::byte> || std::same_as<T, char> || std::same_as<T, bf16> || std::same_as<T, f16> ||
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::int8_t> || std::same_as<T, std::uint8_t> ||
    std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t> || std::same_as<T, bool>;

/// Returns the DType of a C++ type.
template <Element T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, bf16>) return DType::bf16;
  else if constexpr (std::same_as<T, f16>) return DType::f16;
  else if constexpr (std::same_as<T, float>) return DType::f32;
  else if constexpr (std::same_as<T, double>) return DType::f64;
  else if constexpr (std::same_as<T, std::int8_t>) return DType::i8;
  else if constexpr (std::same_as<T, std::uint8_t>) return DType::u8;
  else if constexpr (std::same_as<T, std::int32_t>) return DType::i32;
  else if constexpr (std::same_as<T, std::int64_t>) return DType::i64;
  else if constexpr (std::same_as<T, bool>) return DType::boolean;
  else return DType::byte;
}

/// A view of contiguous elements to read. Owns nothing; the memory must outlive it.
///
/// A std::span of elements without a fixed size converts to a Buffer, and one of const elements to a ConstBuffer. A container
/// doesn't convert by itself, nor a span of fixed size, which std::span makes of an array unless T is given:
///
///   std::vector<float> v(8);
///   std::array<float, 8> a{};
///   world.all_reduce(std::span(v), Reduction::sum);         // std::span<float>(v) is the same
///   world.all_reduce(std::span<float>(a), Reduction::sum);  // std::span(a) would be of fixed size, and wouldn't compile
///
/// Elements of a type without a DType, such as structs, are moved as bytes: Buffer(&item, sizeof item, DType::byte).
struct ConstBuffer {
  const std::byte* data = nullptr;
  std::size_t count = 0;  ///< elements, not bytes
  DType dtype = DType::byte;

  ConstBuffer() = default;
  ConstBuffer(const void* first, std::size_t elements, DType type)
      : data(static_cast<const std::byte*>(first)), count(elements), dtype(type) {}
  template <Element T>
  ConstBuffer(std::span<const T> elements) : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}
  template <Element T>
  ConstBuffer(std::span<T> elements) : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}

  std::size_t bytes() const { return count * size_of(dtype); }
  std::span<const std::byte> as_bytes() const { return {data, bytes()}; }
  /// Returns the view of `n` elements from element `first` on; doesn't check bounds.
  ConstBuffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

/// A view of contiguous elements to write. Owns nothing; the memory must outlive it.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  ///< elements, not bytes
  DType dtype = DType::byte;

  Buffer() = default;
  Buffer(void* first, std::size_t elements, DType type) : data(static_cast<std::byte*>(first)), count(elements), dtype(type) {}
  template <Element T>
  Buffer(std::span<T> elements) : Buffer(elements.data(), elements.size(), dtype_of<T>()) {}

  operator ConstBuffer() const { return {data, count, dtype}; }
  std::size_t bytes() const { return count * size_of(dtype); }
  std::span<std::byte> as_bytes() const { return {data, bytes()}; }
  /// Returns the view of `n` elements from element `first` on; doesn't check bounds.
  Buffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

// --- operations --------------------------------------------------------------------------------------------------------------

/// An operation of a communicator. Errors, traces, reports and --fault spell it as name() does.
enum class Op : std::uint8_t {
  send,
  recv,
  send_recv,
  broadcast,
  all_gather,
  reduce_scatter,
  all_reduce,
  reduce,
  all_to_all,
  gather,
  scatter,
  barrier
};
/// Number of operations.
inline constexpr int kOps = 12;
/// Returns true for operations that all ranks of a group call together, false for messages between two ranks.
constexpr bool is_collective(Op op) { return op != Op::send && op != Op::recv && op != Op::send_recv; }
/// Returns the enumerator's name: "all_gather".
std::string_view name(Op op);
/// Returns the operation with this name; none if there is no such operation.
std::optional<Op> op_from_name(std::string_view text);

// X(enumerator, name)
#define TSPRUN_REDUCTIONS(X) \
  X(sum, "sum")              \
  X(max, "max")              \
  X(min, "min")              \
  X(product, "product")      \
  X(average, "average")      \
  X(bit_and, "and")          \
  X(bit_or, "or")            \
  X(bit_xor, "xor")

/// Operation by which a reduction combines two elements; see reduces() for what takes which elements.
///
/// Sums and products of integers wrap around, as in two's complement. min and max propagate NaN. average is the sum divided by
/// the number of ranks (a hierarchical one, of averages within nodes). Of bool, sum and max are or, product and min are and.
enum class Reduction : std::uint8_t {
#define TSPRUN_X(reduction, text) reduction,
  TSPRUN_REDUCTIONS(TSPRUN_X)
#undef TSPRUN_X
};
/// Number of reductions.
inline constexpr int kReductionCount = 8;
/// Returns true if elements of this type can be reduced so: numbers by sum, max, min and product, those with a fraction by
/// average, integers by and, or and xor; bool by all but average; bytes by none.
constexpr bool reduces(Reduction reduction, DType dtype) {
  if (dtype == DType::byte) return false;
  if (reduction == Reduction::average) return is_floating(dtype);
  return reduction < Reduction::average || !is_floating(dtype);
}
/// Returns the reduction's name: "sum"; "and" of Reduction::bit_and.
std::string_view name(Reduction reduction);
/// Returns the reduction with this name; none if there is no such reduction.
std::optional<Reduction> reduction_from_name(std::string_view text);

// X(enumerator, which is the name, too)
#define TSPRUN_ALGORITHMS(X) X(automatic) X(one_shot) X(rooted) X(direct) X(ring) X(hierarchical) X(tree)

/// Algorithm of a collective.
///
/// - automatic: a table decides by operation, bytes and group; `tsprun doctor` prints it, TSP_ALGORITHMS overrides it
/// - one_shot: all_reduce only: one round, in which every rank gets all buffers and sums everything itself
/// - rooted: all_reduce and barrier only: through rank 0, with 2(n−1) messages instead of n²
/// - direct: every rank exchanges messages with every other, and reads from their memory where it can
/// - ring: every rank exchanges messages with its two neighbours only
/// - hierarchical: direct within nodes; between nodes, from each rank to the ranks in its place on other nodes
/// - tree: all_reduce only: every chunk is summed and spread on a tree of its own, in 2·log2 n steps instead of a ring's 2(n−1)
enum class Algorithm : std::uint8_t {
#define TSPRUN_X(algorithm) algorithm,
  TSPRUN_ALGORITHMS(TSPRUN_X)
#undef TSPRUN_X
};
/// Returns the enumerator's name: "one_shot".
std::string_view name(Algorithm algorithm);
/// Returns the algorithm with this name; none if there is no such algorithm.
std::optional<Algorithm> algorithm_from_name(std::string_view text);

/// A queue of a rank's operations. Those of one stream run in the order of the calls; those of different streams share neither
/// order nor buffers, so two ranks may begin operations of different streams in different orders. The names say what tsprun's own
/// schedules use them for; a program may use them as it likes.
enum class Stream : std::uint8_t { control, weights, kv, gradients };
/// Number of streams.
inline constexpr int kStreams = 4;
/// Returns the stream's name, as reports spell it.
std::string_view name(Stream stream);

// --- traffic -----------------------------------------------------------------------------------------------------------------

/// Purpose of a payload, by which traffic is counted. `none` is for bytes that aren't reported as traffic, `unasked` for messages
/// with a tag that came before their receive: they are reported by its purpose, once it takes them.
enum class Purpose : std::uint8_t { weights, kv, activations, gradients, embedding, head, other, none, unasked };
/// Number of purposes that are reported: all but `none` and `unasked`.
inline constexpr int kPurposes = 7;
/// Returns the purpose's name, as reports spell it.
std::string_view name(Purpose purpose);

/// Payload bytes that a rank sent and received, indexed by Purpose. The last slots aren't reported: Purpose::none counts bytes
/// that emulated links added.
struct TrafficCounters {
  std::uint64_t sent[kPurposes + 2] = {};
  std::uint64_t received[kPurposes + 2] = {};
};

/// Bytes that a rank sent and received over one transport.
struct LinkTraffic {
  std::string_view transport;  ///< "shm", "verbs", "tcp"
  TrafficCounters counters;
};

}  // namespace tsprun
