// Turns dlopen's complaints into errors.
#include "transport/shared_library.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <utility>

namespace tsprun::detail {

SharedLibrary::SharedLibrary(const char* file, std::string name, std::string package)
    : name_(std::move(name)), package_(std::move(package)), handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) fail();
}

void* SharedLibrary::address_of(const char* symbol) const {
  void* const address = ::dlsym(handle_, symbol);
  if (address == nullptr) fail();
  return address;
}

void SharedLibrary::fail() const {
  const char* const reason = ::dlerror();
  throw Error(Cause::refused, fmt::format("can't load {}: {}; Debian's package {} brings it", name_,
                                          reason == nullptr ? "no reason given" : reason, package_));
}

}  // namespace tsprun::detail
