#include "transport/message.h"

namespace tsprun {

std::string_view name(Stream stream) {
  switch (stream) {
    case Stream::control: return "control";
    case Stream::weights: return "weights";
    case Stream::kv: return "kv";
    case Stream::gradients: return "gradients";
  }
  return "unknown";
}

std::string_view name(Purpose purpose) {
  switch (purpose) {
    case Purpose::weights: return "weights";
    case Purpose::kv: return "kv";
    case Purpose::activations: return "activations";
    case Purpose::gradients: return "gradients";
    case Purpose::embedding: return "embedding";
    case Purpose::head: return "head";
    case Purpose::other: return "other";
    case Purpose::none: return "none";
  }
  return "unknown";
}

}  // namespace tsprun
