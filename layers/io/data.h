// Training and evaluation data: files joined into one stream of tokens t₀ … t_{N−1}. Text is bytes, each a token, unless a
// tokenizer has made its ids; `.bin`
// files hold little-endian uint16 ids, `.u32` files uint32 ones, and `.npy` files say themselves what they hold. The tokens of a
// training sequence are determined by seed, step and the sequence's number alone, never by the layout.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace tsprun::detail {

/// A token's id.
using Token = std::int32_t;

/// How a file holds ids, all little-endian.
enum class IdKind : std::uint8_t { u8, u16, u32, i32, i64 };

/// The ids of text files that a tokenizer has made.
using IdsOfTexts = std::map<std::filesystem::path, std::shared_ptr<const std::vector<Token>>>;

/// The stream of tokens. Tokens are read from the files when they are asked for. Ranks and threads may share it.
class TokenStream {
 public:
  /// Opens the files, which follow each other in the stream. Throws Error(refused): no files, a file that is missing or not
  /// regular, one that holds numbers of another kind (refuse_other_numbers()) or that its length doesn't fit, fewer than `fewest`
  /// tokens in all (0 to 2; a prediction needs two). `texts` has the ids of the files among `files` whose bytes aren't their ids.
  explicit TokenStream(const std::vector<std::filesystem::path>& files, std::uint64_t fewest = 2, const IdsOfTexts& texts = {});

  std::uint64_t size() const { return size_; }  ///< N
  /// Checks that all ids are below `vocabulary`, reading the files once if their format allows larger ids. Throws Error(refused)
  /// at the first that isn't: file, position, byte offset, id; and for a .bin file if the vocabulary has ids that don't fit into
  /// 16 bits.
  void check_vocabulary(std::size_t vocabulary) const;
  /// Reads tokens first, first + 1, … into `tokens`. Throws Error(refused) if they aren't all in the stream, if a file can't be
  /// read, or if an id isn't from 0 to 2^31 − 1.
  void read(std::uint64_t first, std::span<Token> tokens) const;

 private:
  struct Part {
    std::filesystem::path path;
    posix::UniqueFd file;
    std::uint64_t first;  // its first token's place in the stream
    std::uint64_t count;
    IdKind kind;
    std::uint64_t begin;                             // byte of the first
    std::shared_ptr<const std::vector<Token>> made;  // by a tokenizer; if null, the file has the ids
  };
  static void check_vocabulary(const Part& part, std::size_t vocabulary);
  std::vector<Part> parts_;
  std::uint64_t size_ = 0;
};

/// Returns whether a file's name says that it holds ids in a form that is read: .bin, .u32, .npy.
bool names_ids(const std::filesystem::path& path);
/// Returns whether a file's name says that it holds ids or other numbers in a form that isn't read: "tokens.u16", "ids.pt".
bool names_other_numbers(const std::filesystem::path& path);
/// Throws Error(refused) if a file holds numbers but not those that its name makes tsprun read: a file whose name or first bytes
/// are those of another format, a .bin file with Megatron's .idx beside it, or a .bin or .u32 file whose ids seem to have more
/// bits.
void refuse_other_numbers(const std::filesystem::path& path);

/// A window of evaluation: the inputs are t[first, first + length), the labels are the tokens one further. All windows but the
/// last have length S.
struct Window {
  std::uint64_t first;
  std::size_t length;
};
/// Returns the number of windows, ⌈(N−1)/S⌉: each token but the first is predicted once.
std::uint64_t window_count(std::uint64_t tokens, std::size_t sequence);
/// Returns window `index`. Precondition: index < window_count(tokens, sequence).
Window window(std::uint64_t tokens, std::size_t sequence, std::uint64_t index);

/// Returns where sequence `index` (from 0) of step `step` (from 1) begins in a stream of `tokens` tokens: uniformly distributed
/// over the places at which S + 1 tokens fit. Precondition: check_training_data() passed.
std::uint64_t training_offset(std::uint64_t tokens, std::size_t sequence, std::uint64_t seed, std::uint64_t step,
                              std::uint64_t index);
/// Returns where sequence `index` of a training that reads whole epochs begins, counted from 0 over the whole run: each epoch
/// reads all ⌊(N−1)/S⌋ whole windows once, in an order of its own. Precondition: check_training_data() passed.
std::uint64_t epoch_offset(std::uint64_t tokens, std::size_t sequence, std::uint64_t seed, std::uint64_t index);
/// Throws Error(refused) if the stream is shorter than one training sequence, S + 1 tokens.
void check_training_data(std::uint64_t tokens, std::size_t sequence);

}  // namespace tsprun::detail
