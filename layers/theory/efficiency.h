// Fractions of a peak that a machine's kernels reach: the same for all, by their FLOPs, or by two sizes of theirs. machine.h
// shows how a machine file states them.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::theory {

/// Fraction of a peak that kernels of one kind reach.
class Efficiency {
 public:
  struct Entry {
    double flops;
    double fraction;
  };
  /// Fractions by two sizes, each increasing and > 0; one row of fractions for each of `rows`, with one for each of `columns`.
  struct Grid {
    std::vector<double> rows;
    std::vector<double> columns;
    std::vector<std::vector<double>> fractions;
  };
  /// Sizes by which a kernel is looked up.
  struct Size {
    double flops;
    double row = 1;
    double column = 1;
  };

  /// Makes one that is the same for kernels of all sizes.
  Efficiency(double everywhere) : grid_{{1}, {1}, {{everywhere}}} {}
  /// Makes one from entries of increasing FLOPs > 0; at least one.
  explicit Efficiency(const std::vector<Entry>& entries);
  explicit Efficiency(Grid grid) : grid_(std::move(grid)), by_flops_(false) {}

  /// Returns the fraction for a kernel: its logarithm is interpolated over those of sizes, and constant outside of the entries.
  double at(const Size& size) const;
  double at(double flops) const { return at(Size{.flops = flops}); }
  /// Returns the fraction of the largest kernels.
  double of_largest() const { return grid_.fractions.back().back(); }

  /// Reads a fraction; from version 2 of a file on also [[FLOPs, fraction], …], and from version 6 on also
  /// {`row`: […], `column`: […], "fraction": [[…], …]}, from where on more work may not take less time. Throws Error(refused),
  /// naming the field and what was expected.
  static Efficiency read(JsonObject& object, std::string_view field, std::size_t version, std::string_view row,
                         std::string_view column);

 private:
  Grid grid_;
  bool by_flops_ = true;
};

/// Fractions of a peak that an implementation of attention reaches.
struct AttentionEfficiency {
  Efficiency forward = 1;
  Efficiency backward = 1;

  AttentionEfficiency() = default;
  AttentionEfficiency(const Efficiency& both) : forward(both), backward(both) {}
  AttentionEfficiency(double both) : AttentionEfficiency(Efficiency(both)) {}

  /// Returns the fraction that the largest forward and backward pass reach together.
  double of_largest() const;
  /// Reads what Efficiency::read() does or, from version 6 on, {"forward": …, "backward": …} of such, with grids of "head" and
  /// "seen". Throws Error(refused), naming the field and what was expected.
  static AttentionEfficiency read(JsonObject& object, std::string_view field, std::size_t version);
};

}  // namespace tsprun::detail::theory
