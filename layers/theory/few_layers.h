// The step of a model with many layers that are alike, from steps of the same model with few.
//
// Once the first ones are past, such layers take equally long in virtual time, or in turn one a little longer than the next, as
// packs of weights take turns on the links. So time, traffic and messages grow evenly from two layers to four and to six, and
// what two more layers add is known. Among many ranks messages of one layer may meet those of others each time in another way:
// then the growth is known as well as its two parts agree, which is said. Where they don't nothing is concluded from them.
#pragma once

#include "core/kernels/parallel.h"
#include "layers/theory/simulate.h"

#include <cstddef>
#include <functional>
#include <optional>

namespace tsprun::detail::theory {

/// Returns the setting with another number of layers. Precondition: its layers are alike.
MeshSetting with_layers(MeshSetting of, std::size_t layers);
/// Returns whether the layers of a setting are alike, many, and all in one stage.
bool may_have_few_layers(const MeshSetting& of);
/// How a setting's layers grow out of few.
struct Growth {
  std::size_t fewest;  ///< layers of the first step that is played
  std::size_t few;     ///< of the second
  std::size_t more;    ///< and of the third
  std::size_t times;   ///< how often what `more` has more than `few` comes on top of `more`
};
/// Returns how many layers the steps have that are played for a setting. Precondition: may_have_few_layers().
Growth growth_of(const MeshSetting& of);
/// A step that was found from steps with few layers.
struct FromFewLayers {
  Simulated step;
  double fewest_seconds;           ///< of the first step that was played
  double seconds_by_first_growth;  ///< what seconds_by_first_growth() returns of the first two
};

/// Returns the step of a setting from three steps with fewer layers, which `play(layers)` plays, on the pool's threads. What
/// programs of all layers say is left unset: memory, FLOPs, received bytes and what binds. Nothing if the steps grow unevenly.
/// Precondition: may_have_few_layers().
std::optional<FromFewLayers> from_few_layers(const MeshSetting& of, kernels::Pool& on,
                                             const std::function<Simulated(std::size_t layers)>& play);
/// Returns the seconds of a step from those of the first two of these steps. They are to be compared with one another: where
/// growth isn't even, a step found from three takes somewhat less or more.
double seconds_by_first_growth(const MeshSetting& of, double fewest_seconds, double few_seconds);

}  // namespace tsprun::detail::theory
