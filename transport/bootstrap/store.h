// The job's key-value store over TCP: where ranks leave their addresses for each other, and launchers of several nodes tell each
// other what their ranks do. The launcher of node 0 serves it; everyone proves the job's secret first (tls/channel.h). Strangers,
// garbage, half-open connections and oversized messages are refused, logged, and hurt nobody.
#pragma once

#include "transport/bootstrap/refusal_log.h"
#include "transport/bootstrap/store_link.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::bootstrap {

/// How the ends of a store's link call themselves: ranks by their number, launchers below zero.
constexpr int launcher_name(int node) { return -2 - node; }

/// The key under which the server leaves random bytes of this job, from which and the secret its data connections have theirs
/// (see lanes_secret()).
inline constexpr std::string_view kJobKey = "job";
/// What the ranks of one job prove to each other: recorded words of another job with the same secret are worth nothing.
Secret lanes_secret(const Secret& secret, std::span<const std::byte> job);

/// Serves without a thread: the owner waits for descriptor() and calls pump().
class StoreServer {
 public:
  /// Listens on a numeric address, or on those of a name's that are this machine's; port 0: any. Throws Error(refused): a second
  /// job on the same port is told so.
  StoreServer(const std::string& host, std::uint16_t port, const tls::Credentials& credentials);

  /// Readable when there is something to do.
  int descriptor() const { return epoll_.get(); }
  void pump();

  /// "host:port", numeric: where it listens.
  std::vector<std::string> addresses() const;
  /// The first of them.
  std::string address() const { return addresses().front(); }
  /// That of this machine by which a client that is connected has reached it: others may, too.
  static std::string reached_at(int client) { return tcp::local_address(client).print(); }
  /// What the server itself sets or reads.
  void set(const std::string& key, std::span<const std::byte> value);
  const std::vector<std::byte>* find(const std::string& key) const;
  /// Called for everything that a client sets, after it was set. Clients are numbered; a number is used again when its client is
  /// gone.
  std::function<void(int client, const std::string& key, const std::vector<std::byte>& value)> on_set;
  /// Called when a client that had proved itself is gone, and why.
  std::function<void(int client, const std::string& why)> on_gone;
  /// True if everything that was sent to that client has left this process.
  bool delivered() const;
  /// Nobody is connected.
  bool alone() const { return clients_.empty(); }

 private:
  struct Client {
    StoreLink link;
    std::string address;            ///< for the log
    std::uint64_t deadline_ns = 0;  ///< to prove itself
    bool room_wanted = false;
    std::vector<std::string> prefixes{};
  };
  void accept(int listener);
  void make_room(bool no_descriptors);
  void serve(int descriptor);
  void obey(Client& client, const StoreFrame& frame);
  void drop(int descriptor, const std::string& why);
  void arrange(Client& client);
  void publish(const std::string& key, const std::vector<std::byte>& value);

  tls::Credentials credentials_;
  posix::UniqueFd epoll_;
  std::vector<posix::UniqueFd> listeners_;
  std::map<int, Client> clients_;  ///< by descriptor
  std::map<std::string, std::vector<std::byte>, std::less<>> values_;
  std::map<std::string, std::set<int>> waiting_;  ///< who asked for a key that isn't set yet
  RefusalLog refusals_{"the store"};
};

class StoreClient {
 public:
  /// Looks in now and then while the client waits: may throw to end the wait.
  using Check = std::function<void()>;

  /// Connects to whichever of the host's addresses answers (dial.h) and proves itself; tries again until the deadline as long as
  /// nobody listens there, and a few times if it is turned away unheard. Throws Error(stalled | refused), and Error(disconnected)
  /// if the server ends the link before both have proved themselves.
  StoreClient(const std::string& address, const tls::Credentials& credentials, int name, std::uint64_t timeout_ns,
              Check check = {});

  void set(std::string_view key, std::span<const std::byte> value);
  void subscribe(std::string_view prefix);
  /// The key's value, as soon as it has one. Throws Error(stalled) at the deadline (and `grace_ns`), naming `what`, and
  /// Error(disconnected).
  std::vector<std::byte> get(const std::string& key, const std::string& what, std::uint64_t grace_ns = 0);

  /// How long the server's machine may acknowledge nothing before the link is over, from now on: at first the timeout.
  void endure(std::uint64_t silence_ns);

  /// While the client waits, its check is called, too, as soon as this descriptor is readable. Borrowed.
  void also_watch(int descriptor) { also_watched_ = descriptor; }

  /// Without waiting: false once the link is over. What came by subscription is in next().
  bool pump() { return link_->pump(); }
  bool next(StoreFrame& frame) { return link_->next(frame); }
  const StoreLink& link() const { return *link_; }
  /// The address of this machine by which the store is reached: peers can reach it too.
  const std::string& local_host() const { return local_host_; }
  /// "host:port", numeric: where the store was reached.
  const std::string& reached() const { return reached_; }

 private:
  void wait(std::uint64_t deadline_ns, const std::string& what);

  std::uint64_t timeout_ns_;
  Check check_;
  std::string local_host_;
  std::string reached_;
  std::unique_ptr<StoreLink> link_;
  int also_watched_ = -1;
};

/// "host:port", "[::1]:port". Throws Error(refused) naming `option`.
struct HostPort {
  std::string host;
  std::uint16_t port;
};
HostPort parse_host_port(const std::string& option, const std::string& text);

}  // namespace tsprun::bootstrap
