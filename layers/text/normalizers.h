// What a tokenizer changes in a text before it is cut.
#pragma once

#include <memory>
#include <string>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::text {

/// One change, or several after each other. Threads may share it.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Changes a text. `from_start`: it begins where the whole text does; set to false if characters are taken away there.
  virtual void apply(std::string& text, bool& from_start) const = 0;
};

/// Reads the file's field "normalizer". Throws Error(refused), also for a type that isn't known.
std::unique_ptr<Normalizer> read_normalizer(const JsonObject& object);

}  // namespace tsprun::detail::text
