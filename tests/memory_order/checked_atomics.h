// Atomics and words that Relacy watches, with std::atomic's interface: under its scheduler a load may return any value that the
// memory orders allow, and a plain word that two threads touch at once is reported.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// Last: it redefines words of the language.
#include <relacy/relacy.hpp>
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef errno
#undef new
#undef delete
#undef malloc
#undef free
#undef calloc
#undef realloc

namespace tsprun::detail::test {

constexpr rl::memory_order order_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed: return rl::mo_relaxed;
    case std::memory_order_consume: return rl::mo_consume;
    case std::memory_order_acquire: return rl::mo_acquire;
    case std::memory_order_release: return rl::mo_release;
    case std::memory_order_acq_rel: return rl::mo_acq_rel;
    default: return rl::mo_seq_cst;
  }
}

/// The orders as they are written.
struct AsWritten {
  static constexpr std::memory_order load(std::memory_order order) { return order; }
  static constexpr std::memory_order store(std::memory_order order) { return order; }
};
/// Loads that are to be seq_cst are acquire: what sleeps can miss what was written before the bell was looked at.
struct AcquireLooks : AsWritten {
  static constexpr std::memory_order load(std::memory_order order) {
    return order == std::memory_order_seq_cst ? std::memory_order_acquire : order;
  }
};
/// Loads and stores have no order.
struct Relaxed {
  static constexpr std::memory_order load(std::memory_order) { return std::memory_order_relaxed; }
  static constexpr std::memory_order store(std::memory_order) { return std::memory_order_relaxed; }
};

template <class Orders>
struct CheckedAtomics {
  template <class T>
  class Atomic {
   public:
    Atomic(T value = 0) : word_(value) {}
    T load(std::memory_order order = std::memory_order_seq_cst) const {
      return word_(RL_INFO).load(order_of(Orders::load(order)));
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      word_(RL_INFO).store(value, order_of(Orders::store(order)));
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
      return word_(RL_INFO).exchange(value, order_of(order));
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order order = std::memory_order_seq_cst) {
      return word_(RL_INFO).compare_exchange_strong(expected, value, order_of(order));
    }

   private:
    rl::atomic<T> word_;
  };

  template <class T>
  class Plain {
   public:
    Plain& operator=(T value) {
      word_(RL_INFO) = static_cast<std::uint64_t>(value);
      return *this;
    }
    operator T() const { return static_cast<T>(word_(RL_INFO).load()); }

   private:
    rl::var<std::uint64_t> word_;
  };
};

}  // namespace tsprun::detail::test
