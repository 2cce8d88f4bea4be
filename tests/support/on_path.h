// An attacker between two ends of a connection: takes the connector's connection, makes one to whom it sought, and passes bytes
// on, through functions that may keep, change, repeat or swallow them.
#pragma once

#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace tsprun::detail::test {

class OnPath {
 public:
  using Bytes = std::vector<std::byte>;
  /// A function that returns what goes on in place of what came; nothing: both connections end here.
  using Meddle = std::function<std::optional<Bytes>(const Bytes&)>;

  /// Listens on loopback, on a thread of its own. Of the first connection `outward` sees what the connector says, `back` what it
  /// is answered; either may be empty. Further connections are passed on as they are.
  OnPath(const tcp::SocketAddress& victim, Meddle outward, Meddle back = {});
  OnPath(const OnPath&) = delete;
  OnPath& operator=(const OnPath&) = delete;
  ~OnPath();

  /// Whom the connector shall dial.
  tcp::SocketAddress where() const { return tcp::local_address(listener_.get()); }

 private:
  /// A connection, from the connector's end to the victim's.
  struct Way {
    posix::UniqueFd ends[2];
    bool is_meddled_with;
  };
  void work(const tcp::SocketAddress& victim);
  bool pass_on(const Way& way, int from) const;

  posix::UniqueFd listener_;
  Meddle outward_;
  Meddle back_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace tsprun::detail::test
