// Values that follow from a layer's sizes, made once for all layers that have the same.
#pragma once

#include "layers/io/config.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Owns a value for each layer of a model; layers of equal sizes share one.
template <class T>
class ByLayer {
 public:
  /// Makes the values as make(number of a layer) does, in the order of the layers, for the first of those that share one.
  template <class Make>
  ByLayer(const ModelConfig& config, Make&& make) {
    if (config.has_sizes_of(config.layer(0))) {
      values_.push_back(make(std::size_t{0}));
      return;
    }
    std::vector<LayerSizes> sizes;  // of values_
    for (std::size_t layer = 0; layer < config.layers; ++layer) {
      const LayerSizes of = config.sizes_of(config.layer(layer));
      std::size_t which = 0;
      while (which < sizes.size() && sizes[which] != of) ++which;
      if (which == sizes.size()) {
        sizes.push_back(of);
        values_.push_back(make(layer));
      }
      which_.push_back(which);
    }
  }

  /// Makes a value of each that another has, as make(value) does.
  template <class Other, class Make>
  ByLayer(const ByLayer<Other>& of, Make&& make) : which_(of.which_) {
    for (const Other& each : of.values_) values_.push_back(make(each));
  }

  /// Returns the value of a layer. Throws std::out_of_range if the model has no such layer and its layers are unlike.
  const T& operator[](std::size_t layer) const { return which_.empty() ? values_.front() : values_[which_.at(layer)]; }

  /// Returns whether all layers share a value.
  bool alike() const { return which_.empty(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  template <class Other>
  friend class ByLayer;

  std::vector<T> values_;
  std::vector<std::size_t> which_;  // of values_, by layer; empty: all have the first
};

/// Layers of equal sizes.
struct LikeLayers {
  const LayerSpec& first;
  std::size_t count;
};
/// Returns a model's layers by their sizes, in the order of the first of each.
inline std::vector<LikeLayers> layers_by_sizes(const ModelConfig& config) {
  const ByLayer<std::size_t> first(config, [](std::size_t layer) { return layer; });
  std::vector<LikeLayers> kinds;
  if (first.alike()) {
    kinds.push_back({config.layer(0), config.layers});
    return kinds;
  }
  for (const std::size_t each : first) {
    std::size_t count = 0;
    for (std::size_t layer = each; layer < config.layers; ++layer) count += first[layer] == each ? 1U : 0U;
    kinds.push_back({config.layer(each), count});
  }
  return kinds;
}

}  // namespace tsprun::detail
