// A vector of plain values that allocates only when it grows beyond kInline elements. Blocking operations live on the stack; for
// common group sizes, so does all their state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace tsprun::detail {

/// A vector of trivially copyable values with room for kInline of them inside the object. Neither copyable nor movable.
template <class T, std::size_t kInline>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  SmallVector() {}  // the inline elements stay uninitialised until they are pushed or filled
  SmallVector(const SmallVector&) = delete;
  SmallVector& operator=(const SmallVector&) = delete;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return more_ ? more_[i] : inline_[i]; }
  T* data() { return more_ ? more_.get() : inline_.data(); }

  void push_back(const T& value) {
    if (size_ == capacity_) reserve(2 * capacity_);
    data()[size_++] = value;
  }
  /// Replaces the contents by n copies of `value`.
  void fill(std::size_t n, const T& value) {
    size_ = 0;
    if (n > capacity_) reserve(n);
    std::fill_n(data(), n, value);
    size_ = n;
  }
  /// Removes element i by moving the last element into its place.
  void take_out(std::size_t i) {
    data()[i] = data()[size_ - 1];
    --size_;
  }
  void clear() { size_ = 0; }

 private:
  void reserve(std::size_t capacity) {
    auto larger = std::make_unique<T[]>(capacity);
    std::copy_n(data(), size_, larger.get());
    more_ = std::move(larger);
    capacity_ = capacity;
  }

  union {  // no constructors run for elements that aren't there
    std::array<T, kInline> inline_;
  };
  std::unique_ptr<T[]> more_;
  std::size_t size_ = 0;
  std::size_t capacity_ = kInline;
};

}  // namespace tsprun::detail
