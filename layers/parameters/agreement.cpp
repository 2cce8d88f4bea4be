// Finds the lowest rank that failed by an all_reduce, and broadcasts its error.
#include "layers/parameters/agreement.h"

#include "transport/cause.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>

namespace tsprun::detail {

namespace {

/// Message about a failure: one byte for the cause, then text that ends at the first zero byte.
using Message = std::array<std::byte, 1024>;

}  // namespace

void agree(Communicator& ranks, const std::function<void()>& body) {
  std::optional<Error> mine;
  try {
    body();
  } catch (const Error& error) {
    mine = error;
  } catch (const std::exception& error) {
    mine.emplace(Cause::exception, error.what());
  }

  // If the job has failed, this throws the job's failure.
  double first = mine ? ranks.rank() : ranks.size();
  ranks.all_reduce(std::span(&first, 1), Reduction::min);
  const int culprit = static_cast<int>(first);
  if (culprit == ranks.size()) return;

  Message message{};
  if (culprit == ranks.rank()) {
    const std::string text = mine->what();
    message[0] = static_cast<std::byte>(mine->cause());
    std::memcpy(message.data() + 1, text.data(), std::min(text.size(), message.size() - 2));
  }
  ranks.broadcast(Buffer(message.data(), message.size(), DType::byte), culprit);
  const auto cause = std::to_integer<std::uint8_t>(message[0]);
  throw Error(is_cause(cause) ? static_cast<Cause>(cause) : Cause::exception, reinterpret_cast<const char*>(message.data() + 1),
              ranks.world_rank(culprit));
}

}  // namespace tsprun::detail
