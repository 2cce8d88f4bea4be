// Any bytes as a safetensors file: refused with an Error, or tensors that cover the data exactly and can all be read.
#include "layers/io/safetensors.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tsprun::detail::posix::UniqueFd memory(::memfd_create("safetensors_fuzz", MFD_CLOEXEC));
  if (!memory || ::write(memory.get(), data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const tsprun::detail::safetensors::File file("/proc/self/fd/" + std::to_string(memory.get()));
    std::uint64_t covered = 0;
    for (const tsprun::detail::safetensors::TensorInfo& tensor : file.tensors()) {
      covered += tensor.bytes;
      if (tensor.rows() * tensor.columns() != tensor.elements()) std::abort();
      if (!tsprun::detail::is_readable(tensor.type)) continue;
      std::vector<float> values(tensor.elements());
      file.read(tensor, std::span(values));
      const std::size_t columns = std::min<std::size_t>(tensor.columns(), 2);
      std::vector<double> part(tensor.rows() * columns);
      file.read(tensor, tsprun::detail::safetensors::Rectangle{0, tensor.rows(), tensor.columns() - columns, columns},
                std::span(part));
    }
    if (covered > size) std::abort();
  } catch (const tsprun::Error&) {
  }
  return 0;
}
