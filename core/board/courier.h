// Carries the boards' news between nodes where no launcher does: a thread of each node's first rank. That of node 0 serves the
// job's store, the others are its clients; through it they tell each other what their ranks do, and the first failure (news.h).
//
//   node 0                         node 1
//   rank 0 ─ store ◀── courier ─── rank 2     rank 2 ends: rank 0 sees the end of the connection, rank 3 its pidfd
//   rank 1                         rank 3     rank 3 ends: rank 2's courier sees its pidfd, and tells rank 0
#pragma once

#include "core/board/boards.h"
#include "core/board/news.h"
#include "core/board/peer_watch.h"
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/store.h"
#include "transport/posix.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// This node's end of the connections between nodes: the server, on node 0, or a client.
struct NodeLink {
  std::unique_ptr<bootstrap::StoreServer> server{};
  std::map<int, int> nodes{};                                           ///< server: the number of each node's client
  std::vector<std::pair<std::string, std::vector<std::byte>>> heard{};  ///< server: what they have told already
  std::unique_ptr<bootstrap::StoreClient> client{};
};

/// Returns what sets a key of the job's store, for all nodes. `link` must outlive it.
News::Say sayer(NodeLink& link);

/// A node's news and its thread.
class Courier {
 public:
  /// Starts the thread. `memory` is a mapping of its own of the node's memory, `pids` the processes of the node's ranks. Throws
  /// Error(refused) if a process can't be watched.
  Courier(shm::NodeMemory memory, NodeLink link, const std::vector<int>& pids);
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;
  /// Does what part() does; in a process that was forked from the rank's, nothing.
  ~Courier();

  /// Stops the thread when it isn't needed any more: after a failure, when that is told; if this rank has left its job in good
  /// order, when all ranks are gone for whom it carries news, those of its node or, at node 0, all; else at once.
  void part();

 private:
  void run();
  void round();
  void hear();
  void look_at_processes();
  void look_for_silence();
  void lose(int node, Cause cause, const std::string& why);
  bool needed() const;
  bool all_gone(int first, int count) const;
  void part_from_others();

  Boards boards_;
  bootstrap::JobDescription job_;
  int ranks_;
  int first_;        // of this node's ranks
  int local_ranks_;  // their number
  NodeLink link_;
  /// A node whose link has ended.
  struct Gone {
    int node;
    Cause cause;
    std::string why;
  };
  std::vector<Gone> gone_;  // server
  News news_;
  PeerWatch watch_;
  std::vector<std::uint64_t> sign_ns_;  // by node: when it was last heard
  std::vector<bool> lost_;              // by node: it is gone, or was given up
  std::uint64_t looked_ns_ = 0;         // at processes and silent nodes
  std::uint64_t told_ns_ = 0;           // when this node's pages were last told
  std::uint64_t round_ns_ = 0;
  bool parted_ = false;  // client: the server has heard everything
  std::atomic<bool> parting_{false};
  const pid_t process_ = ::getpid();
  std::thread thread_;
};

}  // namespace tsprun::detail
