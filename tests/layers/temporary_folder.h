// A folder that lives as long as a test, and files written byte by byte.
#pragma once

#include <gtest/gtest.h>

#include "transport/cause.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tsp_layers_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// The message of the Error(refused) that `action` throws; empty, and the test fails, if it doesn't.
template <class Action>
std::string refusal(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << "more than one line: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace tsprun::detail::test

/// `action` must throw Error(refused) whose message has every one of the texts.
#define EXPECT_REFUSED(action, ...)                                                                  \
  do {                                                                                               \
    const std::string refusal_message = tsprun::detail::test::refusal([&] { (void)(action); });      \
    for (const std::string& refusal_part : std::vector<std::string>{__VA_ARGS__}) {                  \
      EXPECT_NE(refusal_message.find(refusal_part), std::string::npos) << "in: " << refusal_message; \
    }                                                                                                \
  } while (false)
