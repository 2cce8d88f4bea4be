// The launchers of one job on several machines, a tsprun each: they meet at the rendezvous and prove to each other that they were
// started alike, on like machines, with like files. Then they tell each other what their ranks do, the first failure, and how
// the job ended. Node 0 serves the job's store; all that is said goes through it:
//
//   node/I        node I is here, and what it was started with; compared by node 0
//   busy/I        node I is here, and still reads the files that its ranks will read
//   proof/I       their digests; compared by node 0
//   go/NONCE      node 0's answer to that: "ok PORT", or why the job can't start, or has begun without this node
//   live/page/R   the flight board's page of rank R
//   live/abort/I  the first failure that node I knows
//   live/bye/I    node I's ranks have ended, and how
//   live/end      node 0's word on how the job has ended, once all have said bye or are lost: all nodes report that
//   live/seen/I   node I has heard it; it leaves when node 0, which waits for that of all, has left
//   live/beat/I   node I lives
//   live/way/R    which transports rank R chose, and why (core/links.h)
#pragma once

#include "launcher/boards.h"
#include "launcher/cluster_words.h"
#include "launcher/options.h"
#include "transport/bootstrap/store.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// How a job ended.
struct Ending {
  Failure failure;  ///< cause none: in good order
  int code = 0;     ///< tsprun's exit code where the failing rank lived; 0: none but what follows from the failure
};

class Cluster {
 public:
  /// Meets all nodes. `trouble`: why the job can't start on this one, which all nodes are told; empty: it can. Throws
  /// Error(refused) naming the nodes that can't start it, are late at the deadline, come twice, were started with other options
  /// or files, or don't know the secret; a taken port is named too. If an earlier attempt of the same job has run, a node that
  /// doesn't come again is lost: Error(disconnected), with its first rank.
  Cluster(const GlobalOptions& global, const std::string& command, const tls::Credentials& secret, const std::string& trouble);

  /// Where this node's ranks find the store: of its addresses one that other nodes reach.
  const std::string& store_address() const { return store_address_; }
  /// The same on all nodes: MASTER_PORT of programs.
  int master_port() const { return master_port_; }
  int descriptor() const;

  /// Called for what a rank says of its transports: live/way/R and the value.
  std::function<void(std::string_view key, std::string_view value)> on_way;
  /// Hears what is new and shows it on the boards; a node that is lost is a failure there.
  void hear(Boards& boards);
  /// Tells the others of changed pages, and that this node lives.
  void tell(Boards& boards);
  /// If the node of that rank has been silent for half of the deadline: that the way to it is cut. What the boards show of its
  /// ranks is then as old, and says nothing against any of them.
  std::optional<Failure> cut_off(int rank) const;
  void tell_failure(const Failure& failure);
  /// This node's ranks have ended, and how the job did as far as it is known here.
  void tell_bye(const Ending& own);
  /// After tell_bye() and hear(): true once every node that isn't lost knows how the job ended, as far as this one can tell. A
  /// node that doesn't say within --timeout that it knows is lost, and then the job has failed.
  bool settled(Boards& boards);
  /// Node 0's word, the same on all nodes; nothing while it isn't known, or if node 0 is lost.
  const std::optional<Ending>& ending() const { return ending_; }

 private:
  struct Node {
    std::uint64_t heard_ns = 0;
    std::optional<Ending> bye = std::nullopt;  ///< what it said when its ranks had ended
    bool seen = false;                         ///< it knows how the job ended
    bool lost = false;
  };
  void serve(const Arrival& mine, const Inputs& inputs);
  std::string begin_with(const tls::Credentials& secret, Arrival mine, const Inputs& inputs);
  std::string answer_to(const Arrival& mine, const Inputs& inputs, std::optional<Agreement>& proof);
  void heard(const std::string& key, const std::vector<std::byte>& value, Boards& boards);
  void say(const std::string& key, std::span<const std::byte> value);
  Failure loss_of(int node, const std::string& why) const;
  void lose(int node, const std::string& why, Boards& boards);
  bool all_said_bye(Boards& boards);
  Ending judged(const Failure& first) const;

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
  std::optional<Ending> ending_;
  std::uint64_t ending_ns_ = 0;  ///< since when it is known here
  std::uint64_t failed_ns_ = 0;  ///< server: since when it waits, after a failure, for others' ranks to end
  std::vector<std::pair<std::string, std::vector<std::byte>>> pending_;  // server: what clients set since hear()
  std::vector<std::pair<int, std::string>> gone_;
};

/// The job's secret out of --secret-file, TSP_SECRET or ~/.config/tsprun/secret, which is made on first use.
/// Throws Error(refused) naming the file and what is wrong with it, such as a secret that could be guessed from what travels.
bootstrap::Secret load_secret(const std::string& file);

}  // namespace tsprun::launcher
