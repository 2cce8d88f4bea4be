// How the texts of tokens become a text. A decoder is a chain of stages that take tokens one by one, so that a text can be
// printed while its model writes it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::text {

/// A stage, with what it remembers of one text.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  /// Takes a part of a token's text.
  virtual void take(std::string_view part) = 0;
  /// Ends the token.
  virtual void end_token() = 0;
  /// Ends the text.
  virtual void finish() = 0;
};

/// A file's decoder. Threads may share it.
class Decoder {
 public:
  /// Makes one that puts blanks between tokens: what a file without a decoder has.
  Decoder();
  /// Reads the file's field "decoder". Throws Error(refused), also for a type that isn't known.
  explicit Decoder(const JsonObject& object);

  /// Returns the stages for one text, which append what is certain to `text`; tokens go into the last one of the list.
  std::vector<std::unique_ptr<DecodeStage>> stages(std::string& text) const;

 private:
  using Make = std::function<std::unique_ptr<DecodeStage>(DecodeStage& next)>;
  void add(JsonObject& object);

  std::vector<Make> makes_;
};

}  // namespace tsprun::detail::text
