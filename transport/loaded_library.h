// A shared library that is loaded when it is first needed, so that machines that don't need it needn't have it.
#pragma once

#include <string>

namespace tsprun::detail {

/// A loaded library. It is never unloaded: its threads and what it made may outlive the object.
class LoadedLibrary {
 public:
  /// Loads a library. Throws Error(refused) that says what it is for and where it comes from. `file`: "libpmix.so.2". `purpose`
  /// ends "can't load libpmix.so.2, …": "by which ranks meet". `source`: "Debian's package libpmix2 brings it".
  LoadedLibrary(const char* file, const char* purpose, const char* source);

  /// Returns a function of the library. Throws Error(refused) if this version of it has none of that name.
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(address(name));
  }

 private:
  void* address(const char* name) const;
  [[noreturn]] void refuse() const;

  const char* file_;
  const char* purpose_;
  const char* source_;
  void* handle_;
};

}  // namespace tsprun::detail
