// A folder with some text in it, for commands that want data.
#pragma once

#include "tests/support/process.h"

#include <fmt/format.h>

#include <fstream>
#include <random>
#include <string>

namespace tsprun::detail::test {

/// text.txt of `bytes` bytes, no line like another, and room for other files beside it.
class TextData {
 public:
  explicit TextData(std::size_t bytes) {
    std::mt19937 random(5);
    std::string text;
    while (text.size() < bytes) text += fmt::format("line {} of {} says {}\n", text.size(), random() % 97, random());
    text.resize(bytes);
    std::ofstream(path("text.txt"), std::ios::binary) << text;
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string text() const { return path("text.txt"); }

 private:
  TemporaryDirectory folder_;
};

}  // namespace tsprun::detail::test
