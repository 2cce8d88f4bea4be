// A value of a template: what Python's values are to Jinja, as far as chat templates use them. Texts are UTF-8 and are counted by
// characters. Texts, lists, dictionaries and namespaces are shared, as Python's are, so that a copy of a value takes no memory
// but its own. What makes a new one spends the allowance before it takes the memory.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tsprun::detail::text::jinja {

class Value;

/// Fault of a template, or of what it was given. Its text names no place; the evaluator adds it.
struct Trouble {
  std::string what;
};

/// Bounds what one run of a template may take: time and memory, in units of about a byte written or a nanosecond. Values that
/// hold a list twice, and that list another one twice, print and compare exponentially many items; so these count, too, not only
/// steps. Concerns the calling thread, while it lives.
class Allowance {
 public:
  Allowance();
  ~Allowance();
  Allowance(const Allowance&) = delete;
  Allowance& operator=(const Allowance&) = delete;
};
/// Takes units of the thread's allowance, if it has one. Throws Trouble if too few are left.
void spend(std::size_t units);

inline constexpr std::size_t kUnitsOfAnItem = 32;  ///< a value in a list: its size, and about its time
inline constexpr std::size_t kUnitsOfAText = 96;   ///< a text in a list: its value and what holds it, besides its bytes

/// A value that isn't there. It is empty and false, and everything else that is done with it fails with its name.
struct Undefined {
  explicit Undefined(std::string_view of);
  std::string name;  ///< cut, if it is long: it is only for messages
};

struct List {
  std::vector<Value> items;
  bool tuple = false;     ///< only its text differs
  std::size_t depth = 0;  ///< lists and dictionaries within each other; the value sets it
};

/// A dictionary in the order of its entries, with texts as keys.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  bool names = false;     ///< a namespace(), whose entries can be set
  std::size_t depth = 0;  ///< as of a list

  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};

/// Arguments of a call, those by name behind those by place.
struct Arguments {
  std::vector<Value> places;
  std::vector<std::pair<std::string, Value>> names;
};

/// A function: a macro, a method of a value, or one of the template's globals.
struct Function {
  std::string name;
  std::function<Value(Arguments&)> call;
  std::size_t depth = 0;  ///< as of a list, if it holds a value
};

class Value {
 public:
  Value() = default;  ///< None
  Value(bool value) : held_(value) {}
  Value(std::int64_t value) : held_(value) {}
  Value(double value) : held_(value) {}
  Value(std::string value) : held_(std::make_shared<std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(Undefined value) : held_(std::make_shared<Undefined>(std::move(value))) {}
  Value(List value);  ///< Throws Trouble for more than 100 levels, which destroying goes down, or a namespace, which can grow.
  Value(Dict value);
  Value(Function value) : held_(std::make_shared<Function>(std::move(value))) {}
  /// Takes over a JSON value.
  static Value of(const nlohmann::ordered_json& json);

  template <class T>
  const T* as() const {
    if constexpr (std::is_arithmetic_v<T>) {
      return std::get_if<T>(&held_);
    } else {
      const auto* shared = std::get_if<std::shared_ptr<T>>(&held_);
      return shared == nullptr ? nullptr : shared->get();
    }
  }
  /// Sets an entry of a namespace. Throws Trouble for another value, and as the constructor does.
  void set_name(const std::string& name, Value value) const;
  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_number() const { return as<std::int64_t>() != nullptr || as<double>() != nullptr || as<bool>() != nullptr; }
  /// Returns a number; true is 1. Precondition: is_number().
  double number() const;
  /// Returns a whole number, if the value is one; true is 1. Throws Trouble naming what it is for.
  std::int64_t whole(std::string_view what) const;
  /// Returns a text. Throws Trouble naming what it is for.
  const std::string& text(std::string_view what) const;

  /// Returns whether it counts as true.
  bool truth() const;
  /// Returns how Python calls its type: "str", "dict".
  std::string_view type() const;
  /// Appends its text, as {{ value }} prints it. Throws Trouble.
  void print(std::string& to) const;
  /// Returns its text as a value: itself, if it is a text. Throws Trouble.
  Value printed() const;
  /// Appends its text within a list: quoted, if it is a text. Throws Trouble.
  void quote(std::string& to) const;
  /// Returns its items: those of a list, keys of a dictionary, characters of a text, none of an undefined value. Throws Trouble.
  std::vector<Value> items() const;
  /// Returns how many items it has. Throws Trouble.
  std::size_t length() const;

  /// Returns how many values are within each other in it.
  std::size_t depth() const;

  bool operator==(const Value& other) const;
  /// Compares it with another number, text or list; unordered: one of them is or has a NaN. Throws Trouble for values that have
  /// no order.
  std::partial_ordering order(const Value& other) const;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<Undefined>, std::shared_ptr<std::string>,
               std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Function>>
      held_;
};

/// How to_json() writes: as Python's json.dumps() with ensure_ascii=False.
struct JsonStyle {
  int indent = -1;           ///< spaces of each level; -1: on one line
  std::string_view between;  ///< items; empty: ", ", or "," before a new line
  std::string_view colon = ": ";
  bool sorted = false;
};
/// Returns a value as JSON. Throws Trouble for values that JSON doesn't have.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace tsprun::detail::text::jinja
