// A key-value store for ranks that share a folder.
#pragma once

#include "tsprun/tsprun.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

/// A folder that all ranks see, with a file for each key.
class FolderStore : public KeyValue {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    const std::string file = path(key);
    std::ofstream(file + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
    std::filesystem::rename(file + ".new", file);
  }

  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) override {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    while (!std::filesystem::exists(path(key))) {
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ifstream file(path(key), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto bytes = std::as_bytes(std::span(text));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

 private:
  std::string path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '-');
    return folder_ + "/" + key;
  }
  std::string folder_;
};

}  // namespace tsprun::detail::test
