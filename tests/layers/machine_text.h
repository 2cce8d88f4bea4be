// A machine file whose numbers make results easy to calculate.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tsprun::detail::theory::test_machine {

/// Four GPUs a node, links of 1e9 bytes/s and two NICs of 5e8 bytes/s, without latencies.
inline const std::string kText = R"({"name": "two fast cards", "memory_bytes": 1e9, "memory_bytes_per_s": 1e11,
  "flops_per_s": {"f32": 1e12, "bf16": 2e12}, "gemm_efficiency": 0.5, "attention_efficiency": 0.25, "gpus_per_node": 4,
  "within_node": {"fabric": "links", "bytes_per_s": 1e9, "latency_s": 0},
  "across_nodes": {"nics_per_node": 2, "bytes_per_s": 5e8, "latency_s": 0, "rail_crossing": 2}})";

/// Returns it with one text replaced.
inline std::string with(const std::string& what, const std::string& instead) {
  std::string text = kText;
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), instead);
}

}  // namespace tsprun::detail::theory::test_machine
