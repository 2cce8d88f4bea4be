// The cases that tests/oracle/torch_cases.py writes, and torch_gpt2_cases.py, for tests: their folder, and their tensors in f64.
// Their comments say what each file holds. A test file that includes this is named *_torch_test.cpp: tests/CMakeLists.txt then
// tells it where the script is.
#pragma once

#include "layers/io/safetensors.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test {

/// Runs the script with Debian's Python. kind: "blocks" or "models". Returns the cases' folders in order; fails the test with the
/// script's words, and returns none, if PyTorch is missing or the script fails.
inline std::vector<std::filesystem::path> write_torch_cases(const std::string& kind, const std::string& folder,
                                                            const std::string& name = "torch_cases.py") {
  Process script({"/usr/bin/python3", TSP_ORACLE_DIR "/" + name, kind, folder});
  const End end = script.wait();
  std::vector<std::filesystem::path> cases;
  if (!end.ended || end.code != 0) {
    ADD_FAILURE() << name << " " << kind << " ended with " << end.code
                  << " (it needs Debian's packages python3 and python3-torch):\n"
                  << script.err();
    return cases;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) cases.push_back(entry.path());
  std::sort(cases.begin(), cases.end());
  EXPECT_GE(cases.size(), 20U) << "too few to mean anything";
  return cases;
}

/// All tensors of a safetensors file.
inline std::map<std::string, std::vector<double>, std::less<>> read_tensors(const std::filesystem::path& path) {
  const safetensors::File file(path);
  std::map<std::string, std::vector<double>, std::less<>> tensors;
  for (const safetensors::TensorInfo& tensor : file.tensors()) {
    std::vector<double>& values = tensors[tensor.name];
    values.resize(tensor.elements());
    file.read(tensor, std::span(values));
  }
  return tensors;
}

}  // namespace tsprun::detail::test
