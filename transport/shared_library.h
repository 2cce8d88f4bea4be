// Libraries that only some processes need: they are loaded when they are needed.
#pragma once

#include <string>

namespace tsprun::detail {

/// A library that dlopen(3) loaded. It stays loaded as long as the process lives. Any thread may use it.
class SharedLibrary {
 public:
  /// Loads `file`. Errors call it `name`, and say which of Debian's packages brings it. Throws Error(refused).
  SharedLibrary(const char* file, std::string name, std::string package);

  /// Sets `function` to the one that the library has by that name. Throws Error(refused) if there is none.
  template <class Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address_of(symbol));
  }

 private:
  void* address_of(const char* symbol) const;
  [[noreturn]] void fail() const;

  std::string name_;
  std::string package_;
  void* handle_;
};

}  // namespace tsprun::detail
