// Training and evaluation data: files joined into one stream of tokens t₀ … t_{N−1}. Text is bytes; `.bin` files are
// little-endian uint16 ids. Which tokens a sequence has follows from seed, step and number alone, never from the layout.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace tsprun {

using Token = std::int32_t;

/// The stream. Tokens are read when they are asked for; ranks and threads may share it.
class TokenStream {
 public:
  /// Opens the files, which follow each other in the stream. Throws Error(refused): no files, one that is missing or no regular
  /// file, a .bin of odd length, fewer than `fewest` tokens in all (1 or 2; a prediction needs two).
  explicit TokenStream(const std::vector<std::filesystem::path>& files, std::uint64_t fewest = 2);

  std::uint64_t size() const { return size_; }  ///< N
  /// Reads all files once. Throws Error(refused) at the first token that isn't below `vocabulary`: file, byte offset, id.
  void check_vocabulary(std::size_t vocabulary) const;
  /// Tokens first, first + 1, … Precondition: they are in the stream. Throws Error(refused) if a file can't be read.
  void read(std::uint64_t first, std::span<Token> tokens) const;

 private:
  struct Part {
    std::filesystem::path path;
    posix::UniqueFd file;
    std::uint64_t first;  // its first token's place in the stream
    std::uint64_t count;
    std::size_t width;  // bytes a token
  };
  std::vector<Part> parts_;
  std::uint64_t size_ = 0;
};

/// Throws Error(refused) if a file of `files` is text and the model folder brings a tokenizer: its ids aren't bytes.
void refuse_text_beside_tokenizer(const std::vector<std::filesystem::path>& files, const std::filesystem::path& model_folder);

/// A window of evaluation: inputs t[first, first + length), labels the tokens one further. All windows but the last have S.
struct Window {
  std::uint64_t first;
  std::size_t length;
};
/// ⌈(N−1)/S⌉: each token but the first is predicted once.
std::uint64_t window_count(std::uint64_t tokens, std::size_t sequence);
/// Precondition: index < window_count(tokens, sequence).
Window window(std::uint64_t tokens, std::size_t sequence, std::uint64_t index);

/// Where sequence `index` (from 0) of step `step` (from 1) begins in a stream of `tokens`: uniform over the places where S + 1
/// tokens fit. Precondition: check_training_data passed.
std::uint64_t training_offset(std::uint64_t tokens, std::size_t sequence, std::uint64_t seed, std::uint64_t step,
                              std::uint64_t index);
/// Throws Error(refused) if the stream is shorter than one training sequence, S + 1 tokens.
void check_training_data(std::uint64_t tokens, std::size_t sequence);

}  // namespace tsprun
