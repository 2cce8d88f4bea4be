// A function that is called while the expression lasts in which it was passed.
#pragma once

#include <memory>
#include <type_traits>

namespace tsprun::detail::text {

template <class Signature>
class FunctionRef;

/// Borrows a callable object.
template <class... Arguments>
class FunctionRef<void(Arguments...)> {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>) FunctionRef(const Callable& callable)
      : object_(std::addressof(callable)),
        call_([](const void* object, Arguments... arguments) { (*static_cast<const Callable*>(object))(arguments...); }) {}
  void operator()(Arguments... arguments) const { call_(object_, arguments...); }

 private:
  const void* object_;
  void (*call_)(const void*, Arguments...);
};

}  // namespace tsprun::detail::text
