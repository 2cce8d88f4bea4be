// The launchers of one job on several machines, a tsprun each: they meet at the rendezvous, then tell each other what their ranks
// do, the first failure, and that they are done. Node 0 serves the job's store; all that is said goes through it:
//
//   node/I        node I is here, and what it was started with; compared by node 0
//   go/NONCE      node 0's answer to that: "ok PORT", or why the job can't start, or has begun without this node
//   live/page/R   the flight board's page of rank R
//   live/abort/I  the first failure that node I knows
//   live/bye/I    node I's ranks have ended
//   live/beat/I   node I lives
//   live/way/R    which transports rank R chose, and why (core/links.h)
#pragma once

#include "launcher/boards.h"
#include "launcher/options.h"
#include "transport/bootstrap/store.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsp::launcher {

class Cluster {
 public:
  /// Meets all nodes. `trouble`: why the job can't start on this one, which all nodes are told; empty: it can. Throws
  /// Error(refused) naming the nodes that can't start it, are late at the deadline, come twice, were started with other options,
  /// or don't know the secret; a taken port is named too.
  Cluster(const GlobalOptions& global, const std::string& command, const bootstrap::Secret& secret, const std::string& trouble);

  /// Where this node's ranks find the store: of its addresses one that other nodes reach.
  const std::string& store_address() const { return store_address_; }
  /// The same on all nodes: MASTER_PORT of programs.
  int master_port() const { return master_port_; }
  int descriptor() const;

  /// Called for what a rank says of its transports: live/way/R and the value.
  std::function<void(std::string_view key, std::string_view value)> on_way;
  /// Hears what is new and shows it on the boards; returns the failure of a node that is lost, if any.
  void hear(Boards& boards);
  /// Tells the others of changed pages, and that this node lives.
  void tell(Boards& boards);
  void tell_failure(const Failure& failure);
  void tell_bye();
  /// All nodes have said that their ranks ended.
  bool all_done() const;
  /// What was said last shall arrive, though this process ends: waits a moment.
  void leave();

 private:
  struct Node {
    std::uint64_t heard_ns = 0;
    bool bye = false;
    bool lost = false;
  };
  /// What a node says when it comes.
  struct Arrival {
    std::string nonce;          ///< the answer's name: there may be two nodes of one number
    std::uint64_t attempt = 0;  ///< how many times this job was begun before
    std::string trouble;        ///< why it can't start here; empty: it can
    Agreement options;

    std::string text() const;
    static std::optional<Arrival> parse(const std::string& text);
  };
  void serve(const Arrival& mine);
  std::string begin_with(const bootstrap::Secret& secret, Arrival mine);
  void answer(const std::string& nonce, std::string_view text);
  void heard(const std::string& key, const std::vector<std::byte>& value, Boards& boards);
  void say(const std::string& key, std::span<const std::byte> value);
  void lose(int node, const std::string& why, Boards& boards);

  int ranks_;
  int self_;
  std::string rendezvous_;
  std::uint64_t timeout_ns_;
  std::vector<Node> nodes_;
  std::optional<bootstrap::StoreServer> server_;
  std::vector<int> links_;  ///< server: the client that is node I's tsprun; -1: none
  std::optional<bootstrap::StoreClient> client_;
  std::string store_address_;
  int master_port_ = 0;
  std::uint64_t last_beat_ns_ = 0;
  std::uint64_t last_look_ns_ = 0;
  bool told_failure_ = false;
  std::vector<std::pair<std::string, std::vector<std::byte>>> pending_;  // server: what clients set since hear()
  std::vector<std::pair<int, std::string>> gone_;
};

/// The job's secret out of --secret-file, TSP_SECRET or ~/.config/tsprun/secret, which is made on first use.
/// Throws Error(refused) naming the file and what is wrong with it.
bootstrap::Secret load_secret(const std::string& file);

}  // namespace tsp::launcher
