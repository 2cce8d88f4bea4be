// A key-value store of the program's own, in which ranks that no tsprun started find each other: Context::join(). PyTorch's
// Store, a folder that all ranks see, or the store of a process manager can be one.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun {

/// A store that all ranks of a job reach, and nobody who isn't trusted: it holds the job's secret. Ranks call it from the thread
/// in which they join. Whatever its functions throw passes through Context::join().
class KeyValue {
 public:
  KeyValue() = default;
  KeyValue(const KeyValue&) = delete;
  KeyValue& operator=(const KeyValue&) = delete;
  virtual ~KeyValue() = default;

  /// Sets a key, which has no value yet, to bytes of any kind (at most 4 KiB).
  virtual void set(const std::string& key, std::span<const std::byte> value) = 0;
  /// Waits until a key has a value and returns it; nothing if it has none within `at_most`. Zero: looks once.
  virtual std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) = 0;
  /// Returns when what every rank has set can be got. All ranks call it equally often. A store whose get() waits needs none.
  virtual void fence() {}
};

}  // namespace tsprun
