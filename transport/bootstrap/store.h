// The job's key-value store over TCP. Ranks leave their addresses in it for each other, and the launchers of several nodes tell
// each other what their ranks do. The launcher of node 0 serves it; every client first proves that it knows the job's secret
// (tls/channel.h). Strangers, garbage, half-open connections and oversized messages are refused and logged, and don't disturb
// other clients.
#pragma once

#include "transport/bootstrap/gathering.h"
#include "transport/bootstrap/refusal_log.h"
#include "transport/bootstrap/store_link.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"
#include "transport/tcp/pacing.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {

/// Returns the name of a launcher as a client of the store. Ranks use their number, launchers numbers below zero.
constexpr int launcher_name(int node) { return -2 - node; }

/// Key under which the server leaves random bytes of this job, from which, together with the secret, lanes_secret() is derived.
inline constexpr std::string_view kJobKey = "job";
/// Returns the secret that the ranks of one job prove to each other, derived from the user's secret, which several jobs may
/// share, and the job's random bytes. So traffic recorded in another job with the same secret is of no use.
Secret lanes_secret(const Secret& secret, std::span<const std::byte> job);

/// Server of the store. It has no thread: its owner waits for descriptor() and calls pump().
class StoreServer {
 public:
  /// Listens on a numeric address, or on those addresses of a name that are this machine's; port 0: any port. Throws
  /// Error(refused), also if another job has the port.
  StoreServer(const std::string& host, std::uint16_t port, const tls::Credentials& credentials);
  /// Listens on those of these addresses that are this machine's, as above.
  StoreServer(const std::vector<tcp::SocketAddress>& addresses, const tls::Credentials& credentials);

  /// Returns a descriptor that is readable when pump() has something to do.
  int descriptor() const { return epoll_.get(); }
  /// Accepts connections, reads and answers requests, and drops clients that didn't prove themselves in time.
  void pump();

  /// Keeps links to other machines sending during outages of up to `outage_ns` (pacing.h). From now on the owner calls pump()
  /// many times a second.
  void pace(std::uint64_t outage_ns);

  /// Leaves room for so many descriptors that the owner will open: where fewer are left, a stranger who connects displaces
  /// another. At first for none.
  void keep_free(int descriptors) { kept_free_ = descriptors; }

  /// Returns whether a connected client's machine acknowledges nothing at present (tcp::is_unanswered()).
  bool is_unanswered(int client) const { return tcp::is_unanswered(client); }

  /// Returns the addresses on which it listens, as numeric "host:port".
  std::vector<std::string> addresses() const;
  /// Returns who came last that said to be a node's launcher but couldn't prove it, and why it was refused; empty: none did.
  const std::string& refused_node() const { return refused_node_; }
  /// Returns the first of addresses().
  std::string address() const { return addresses().front(); }
  /// Returns the address of this machine, as "host:port", by which a connected client has reached it; other clients may be able
  /// to use it too.
  static std::string reached_at(int client) { return tcp::local_address(client).print(); }
  /// Sets a key for the server itself and tells clients that wait for it.
  void set(const std::string& key, std::span<const std::byte> value);
  /// Returns a key's value, null if it has none. Valid until the key is set again.
  const std::vector<std::byte>* find(const std::string& key) const;
  /// Callback after a client has set a key. `client` numbers the connection; the number is used again after the client has gone.
  std::function<void(int client, const std::string& key, const std::vector<std::byte>& value)> on_set;
  /// Callback after a client that had proved itself has gone, with the reason. `damaged`: because what one end got isn't what the
  /// other had sent.
  std::function<void(int client, const std::string& why, bool damaged)> on_gone;
  /// Returns true if no client is connected.
  bool alone() const { return clients_.empty(); }
  /// Returns the bytes that wait in this process for clients that read slowly.
  std::size_t unread() const;
  /// Return how many frames clients have sent so far, and how many keys there are.
  std::uint64_t requests() const { return requests_; }
  std::size_t keys() const { return values_.size(); }

 private:
  struct Client {
    StoreLink link;
    std::string address;            ///< for the log
    std::uint64_t deadline_ns = 0;  ///< for its greeting
    bool room_wanted = false;
    std::vector<std::string> prefixes{};
    std::string asked_too_much{};  ///< why its link ends: it asked for too much, or left too much unread; empty: it goes on
  };
  void accept(int listener);
  bool make_room(bool no_descriptors);
  void serve(int descriptor);
  void obey(Client& client, const StoreFrame& frame);
  void drop(int descriptor, const std::string& why);
  void arrange(Client& client);
  void publish(const std::string& key, const std::vector<std::byte>& value);
  void answer_gather(Client& client);

  tls::Credentials credentials_;
  posix::UniqueFd epoll_;
  std::vector<posix::UniqueFd> listeners_;
  std::map<int, Client> clients_;  ///< by descriptor
  std::set<int> unproven_;         ///< of them, those that weren't ready when last looked at
  std::set<int> subscribers_;      ///< of them, those with prefixes
  std::set<int> overfull_;         ///< of them, those that have left too much unread to be told more
  std::map<std::string, std::vector<std::byte>, std::less<>> values_;
  std::map<std::string, std::set<int>> waiting_;  ///< clients that wait for a key that isn't set yet
  Gatherings gatherings_{values_};
  std::uint64_t requests_ = 0;
  RefusalLog refusals_{"the store"};
  std::string refused_node_;
  int kept_free_ = 0;
  std::optional<tcp::Pacing> pacing_;
};

/// A client of the store. One thread at a time.
class StoreClient {
 public:
  /// Callback at least every 50 ms while the client waits; may throw to end the wait.
  using Check = std::function<void()>;

  /// Connects to the first of the host's addresses that answers (dial.h) and proves the secret. Tries again until the deadline
  /// while nobody listens there, and a few times if the server drops it unheard. `name`: the rank, or launcher_name(). Throws
  /// Error(stalled | refused), and Error(disconnected) if the server ends the link before both ends have proved themselves.
  StoreClient(const std::string& address, const tls::Credentials& credentials, int name, std::uint64_t timeout_ns,
              Check check = {});
  /// Connects to the first of these addresses that answers, as above.
  StoreClient(const std::vector<tcp::SocketAddress>& addresses, const tls::Credentials& credentials, int name,
              std::uint64_t timeout_ns, Check check = {});

  /// Sets a key; doesn't wait.
  void set(std::string_view key, std::span<const std::byte> value);
  /// Asks for everything that is or will be set under keys with this prefix; it arrives in next(). Doesn't wait.
  void subscribe(std::string_view prefix);
  /// Waits until the key has a value and returns it. What arrives meanwhile by subscription is left for next(). Throws
  /// Error(stalled), naming `what`, when the timeout and `grace_ns` have passed; Error(disconnected) if the link ends.
  std::vector<std::byte> get(const std::string& key, const std::string& what, std::uint64_t grace_ns = 0);

  /// Waits until all keys `prefix`N have values, N of `numbers`, which are distinct, and returns the values in that order. Calls
  /// lacking(N) with the first number whose value is missing, whenever that is another than before; it returns a name for errors.
  /// Each such number has the whole timeout. What arrives meanwhile by subscription is left for next(). `cut`: the part that is
  /// wanted of each value. Precondition: `prefix` doesn't end in a digit, numbers are below kMostNumbers. Throws as get(), and
  /// Error(corrupt) if what the store answers is no list of values.
  std::vector<std::vector<std::byte>> gather(const std::string& prefix, const std::vector<int>& numbers,
                                             const std::function<std::string(int)>& lacking, const GatherCut& cut = {});

  /// Sets how long the server's machine may leave data unacknowledged before the link ends (TCP_USER_TIMEOUT); at first the
  /// timeout.
  void endure(std::uint64_t silence_ns);
  /// Keeps the link sending during outages of up to `outage_ns`, as the server's pace() does. Call it after endure(); from then
  /// on the owner calls pump() many times a second.
  void pace(std::uint64_t outage_ns);

  /// Returns whether the server's machine acknowledges nothing at present. Precondition: the link isn't over.
  bool is_unanswered() const { return tcp::is_unanswered(link_->descriptor()); }

  /// Makes a waiting client also wake, and call its check, when this descriptor is readable. Borrowed.
  void also_watch(int descriptor) { also_watched_ = descriptor; }

  /// Reads and writes without waiting. Returns false once the link is over. Take what came by subscription with next().
  bool pump();
  /// Takes the next frame that has arrived; false if there is none.
  bool next(StoreFrame& frame) { return link_->next(frame); }
  const StoreLink& link() const { return *link_; }
  /// Returns the address of this machine by which it reached the store; peers can reach it there too.
  const std::string& local_host() const { return local_host_; }
  /// Returns the numeric "host:port" at which the store was reached.
  const std::string& reached() const { return reached_; }

 private:
  void look(std::uint64_t deadline_ns, const std::string& what) const;
  void wait(std::uint64_t deadline_ns, const std::string& what) const;

  std::uint64_t timeout_ns_;
  Check check_;
  std::string local_host_;
  std::string reached_;
  std::unique_ptr<StoreLink> link_;
  int also_watched_ = -1;
  std::uint32_t gathers_ = 0;  ///< begun so far; the id of the last
  std::optional<tcp::Pacing> pacing_;
};

/// A host and a port of a command line.
struct HostPort {
  std::string host;
  std::uint16_t port;
};
/// Parses "host:port" or "[::1]:port". Throws Error(refused) naming `option` if the text is neither.
HostPort parse_host_port(const std::string& option, const std::string& text);
/// Returns the addresses of a host and port as text. Throws Error(refused), naming `option`, if it isn't such a text.
std::vector<tcp::SocketAddress> addresses_of(const std::string& option, const std::string& text);

}  // namespace tsprun::detail::bootstrap
