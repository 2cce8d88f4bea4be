// The launchers of one job on several machines, one tsprun on each. They meet at the rendezvous, prove that they know the job's
// secret, and compare options, machines and files. While the job runs they tell each other what their ranks do, the first
// failure (core/board/news.h), and how the job ended. Everything goes through the key-value store that node 0 serves:
//
//   node/I        node I has come, and what it was started with; node 0 compares that
//   busy/I        node I has come, and is still reading the files that its ranks will read
//   proof/I       the digests of those files; node 0 compares them
//   go/NONCE      node 0's answer to one node: "ok PORT", or why the job can't start, or that it has begun without this node
//   live/bye/I    node I's ranks have ended, and how
//   live/end      how the job ended, as node 0 decides once every node has said bye or is lost; all nodes report that
//   live/seen/I   node I has read live/end; it leaves when node 0 has left, which waits until all nodes have read it
//   live/asked/I  the signal by which node I's tsprun was asked to end the programs of `run`
//   live/way/R    which transports rank R chose, and why (core/links.h)
#pragma once

#include "launcher/cluster_words.h"
#include "launcher/options.h"
#include "transport/bootstrap/store.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Connection of this tsprun to those of the other nodes. Node 0 serves the store, the others are its clients. Used by one
/// thread.
class Cluster {
 public:
  /// Meets all nodes and returns when the job may start. `trouble`: reason why the job can't start on this node, which all nodes
  /// are told; empty: it can. Throws Error(refused) naming the nodes that can't start it, haven't come by the deadline
  /// (--timeout), came twice, were started with other options or files, or don't know the secret; also if the rendezvous' port is
  /// taken. In a further attempt of the same job, a node that doesn't come again is lost: Error(disconnected), with that node's
  /// first rank.
  Cluster(const GlobalOptions& global, const std::string& command, const tls::Credentials& secret, const std::string& trouble);

  /// Returns the address at which this node's ranks find the store. Of node 0's addresses it is one that other nodes reach.
  const std::string& store_address() const { return store_address_; }
  /// Returns the port for MASTER_PORT of programs under `run`. It is the same on all nodes.
  int master_port() const { return master_port_; }
  /// Leaves room for so many descriptors that this tsprun will open, whoever connects to the store that it may serve.
  void keep_free(int descriptors) {
    if (server_) server_->keep_free(descriptors);
  }
  /// Returns a descriptor that becomes readable when there is something for hear().
  int descriptor() const;

  /// Callback of hear() for what a rank says of its transports: the key live/way/R and its value.
  std::function<void(std::string_view key, std::string_view value)> on_choice;
  /// Reads what other nodes have sent and shows it on the boards. A node that is gone, or was silent for --timeout, is lost,
  /// which is a failure on the boards.
  void hear(Boards& boards);
  /// Sends the pages that changed to the other nodes, and every 200 ms that this node is alive.
  void tell(Boards& boards);
  /// Returns the failure "the way between two nodes is cut" if what this node sends the node of `rank` (or node 0, by which it
  /// hears others) has not been acknowledged for at least half of --timeout; the failure "that node is lost" if the node was
  /// silent for that long; else nothing. What the boards show of that node's ranks is then as old, and is no evidence against
  /// any of them. A rank of -1 asks for any other node.
  std::optional<Failure> cut_off(int rank) const;
  /// Tells the other nodes that a signal has asked this tsprun to end, and that programs have got it.
  void tell_asked(int signal);
  /// Returns the signal of which another node has told so; 0: none has.
  int asked() const { return asked_; }
  /// Time that programs may take to end after a signal or a failure, in which no node is taken for lost because its ranks haven't
  /// ended.
  std::uint64_t patience_ns = 0;
  /// Sends the first failure to the other nodes. Does nothing if one was sent or received before.
  void tell_failure(const Failure& failure);
  /// Records that this node's ranks have ended, and how the job ended as far as this node knows; nodes other than 0 tell node 0.
  void tell_bye(const Ending& own);
  /// Returns true once every node that isn't lost knows how the job ended, as far as this node can tell. Call it after tell_bye()
  /// and hear() until it does. A node that doesn't acknowledge the end within --timeout is lost, and the job has then failed.
  bool settled(Boards& boards);
  /// Returns how the job ended, as node 0 decided; the same on all nodes. Empty while it isn't known, or if node 0 is lost.
  const std::optional<Ending>& ending() const { return ending_; }

 private:
  struct Node {
    std::uint64_t heard_ns = 0;
    std::uint64_t unanswered_ns = 0;           ///< since when its machine acknowledges nothing; 0: it does
    std::optional<Ending> bye = std::nullopt;  ///< what the node said when its ranks had ended
    bool seen = false;                         ///< the node has acknowledged live/end
    bool lost = false;
  };
  /// Node whose link has ended.
  struct Gone {
    int node;
    std::string why;
    bool damaged;  ///< what one end got isn't what the other had sent
  };
  void serve(const JoinRequest& mine, const Inputs& inputs);
  std::string begin_with(const tls::Credentials& secret, JoinRequest mine, const Inputs& inputs);
  std::string answer_to(const JoinRequest& mine, const Inputs& inputs, std::optional<Agreement>& proof);
  void heard(const std::string& key, const std::vector<std::byte>& value, Boards& boards);
  void say(const std::string& key, std::span<const std::byte> value);
  News::Say sayer();
  Failure loss_of(int node, const std::string& why) const;
  void watch_ways(std::uint64_t now);
  std::optional<Failure> cut_way(int node) const;
  std::optional<Failure> cut_off_node(int node) const;
  void lose(int node, const std::string& why, Boards& boards);
  void lose(const Gone& gone, Boards& boards);
  bool all_said_bye(Boards& boards);
  Ending judged(const Failure& first) const;

  int ranks_;
  int self_;
  std::string rendezvous_;
  std::uint64_t timeout_ns_;
  std::vector<Node> nodes_;
  News news_;
  std::optional<bootstrap::StoreServer> server_;
  std::vector<int> links_;  ///< server: number of the client that is node I's tsprun; -1: none
  std::optional<bootstrap::StoreClient> client_;
  std::string store_address_;
  int master_port_ = 0;
  std::uint64_t last_look_ns_ = 0;
  std::uint64_t watched_ns_ = 0;  ///< when the ways to other nodes were last looked at
  std::optional<Ending> ending_;
  std::uint64_t ending_ns_ = 0;  ///< when ending_ became known here
  int asked_ = 0;
  std::uint64_t failed_ns_ = 0;  ///< server: when, after a failure, it began to wait for other nodes' ranks to end
  std::vector<std::pair<std::string, std::vector<std::byte>>> pending_;  // server: what clients have set since the last hear()
  std::vector<Gone> gone_;
};

}  // namespace tsprun::detail::launcher
