// Calls the dynamic loader.
#include "transport/loaded_library.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace tsprun::detail {

LoadedLibrary::LoadedLibrary(const char* file, const char* purpose, const char* source)
    : file_(file), purpose_(purpose), source_(source), handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) refuse();
}

void* LoadedLibrary::address(const char* name) const {
  void* const found = ::dlsym(handle_, name);
  if (found == nullptr) refuse();
  return found;
}

void LoadedLibrary::refuse() const {
  const char* const reason = ::dlerror();
  throw Error(Cause::refused,
              fmt::format("can't load {}, {}: {}; {}", file_, purpose_, reason == nullptr ? "no reason given" : reason, source_));
}

}  // namespace tsprun::detail
