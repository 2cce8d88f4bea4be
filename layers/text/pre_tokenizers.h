// How a tokenizer cuts a text into words, each of which its model then cuts into tokens.
#pragma once

#include "layers/text/function_ref.h"

#include <memory>
#include <string_view>
#include <vector>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::text {

/// Receiver of a piece of text that isn't empty. `from_start`: it begins where the whole text does.
using TakePiece = FunctionRef<void(std::string_view piece, bool from_start)>;

/// One way of cutting. Threads may share it.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts a piece that isn't empty, changes it perhaps, and passes on what comes of it, from the left to the right. Throws
  /// Error(refused) if an expression gives up.
  virtual void cut(std::string_view piece, bool from_start, TakePiece next) const = 0;
};

/// All of a file's, one after the other.
class PreTokenizers {
 public:
  PreTokenizers() = default;
  /// Reads the file's field "pre_tokenizer". Throws Error(refused), also for a type that isn't known.
  explicit PreTokenizers(const JsonObject& object);

  /// Cuts a piece by all of them.
  void cut(std::string_view piece, bool from_start, TakePiece next) const { cut_from(0, piece, from_start, next); }
  /// Makes the last of them leave bytes as they are, if it is the one that puts characters of byte_alphabet.h in their place. The
  /// model then does so. Returns whether it is.
  bool leave_bytes();

 private:
  void cut_from(std::size_t index, std::string_view piece, bool from_start, TakePiece next) const;

  std::vector<std::unique_ptr<PreTokenizer>> all_;
};

}  // namespace tsprun::detail::text
