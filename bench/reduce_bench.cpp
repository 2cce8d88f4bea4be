// The reduction kernel against memcpy: bytes read and written a second, for 2 … 9 terms, in and out of the
// cache, with cached and streaming stores. Shows from which size on streaming stores pay (kStreamingBytes in
// core/collectives/choice.h).
#include "core/kernels/reduce.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace {

using tsprun::DType;
using tsprun::Reduction;
using tsprun::detail::kernels::Stores;

struct Free {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{4096}); }
};
using Array = std::unique_ptr<std::byte[], Free>;

Array make_array(std::size_t bytes) {
  Array array(new (std::align_val_t{4096}) std::byte[bytes]);
  std::memset(array.get(), 0, bytes);
  return array;
}

/// Arguments: terms, KiB of output, DType, 1 for streaming stores.
void reduce_sum(benchmark::State& state) {
  const auto terms = static_cast<std::size_t>(state.range(0));
  const std::size_t bytes = static_cast<std::size_t>(state.range(1)) * 1024;
  const auto dtype = static_cast<DType>(state.range(2));
  const Stores stores = state.range(3) != 0 ? Stores::streaming : Stores::cached;
  std::vector<Array> arrays;
  std::vector<const std::byte*> inputs;
  for (std::size_t t = 0; t < terms; ++t) {
    arrays.push_back(make_array(bytes));
    inputs.push_back(arrays.back().get());
  }
  const Array out = make_array(bytes);
  for (auto _ : state) {
    tsprun::detail::kernels::reduce(Reduction::sum, dtype, inputs, out.get(), bytes / size_of(dtype), stores);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes * (terms + 1)));
  state.SetLabel(std::string(name(dtype)) + (stores == Stores::streaming ? " streaming" : " cached"));
}

/// Measures a copy of the same bytes, the least that a reduction can cost. Argument: KiB.
void copy(benchmark::State& state) {
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)) * 1024;
  const Array from = make_array(bytes);
  const Array to = make_array(bytes);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * bytes));
}

}  // namespace

BENCHMARK(copy)->ArgsProduct({{64, 1024, 16384, 65536}})->ArgNames({"KiB"});
BENCHMARK(reduce_sum)
    ->ArgsProduct({{2, 4, 8, 9}, {64, 1024, 16384}, {static_cast<int>(DType::f32), static_cast<int>(DType::bf16)}, {0, 1}})
    ->ArgNames({"terms", "KiB", "dtype", "streaming"});

BENCHMARK_MAIN();
