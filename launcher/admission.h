// Node 0's side of the meeting before a job: waits for all nodes at the rendezvous, checks that each was started as node 0 was
// and would read the same files, and answers them. Store keys are listed in cluster.h.
#pragma once

#include "launcher/cluster_words.h"
#include "launcher/inputs.h"
#include "transport/bootstrap/store.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Meeting of all nodes before a job, at node 0. Used by one thread.
class Admission {
 public:
  /// Handles the server's messages until it is destroyed. `mine`: what node 0 was started with and, if it can't start the job,
  /// why not.
  Admission(bootstrap::StoreServer& server, int nodes, std::uint64_t timeout_ns, const JoinRequest& mine);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  ~Admission();

  /// Reads node 0's files, and waits until all nodes have come and have read theirs. Returns why the job can't start; no text: it
  /// can.
  Refusal wait(const Inputs& inputs);
  /// Answers all nodes that came with the refusal, or with "ok PORT". After a refusal it waits until they have left, at most for
  /// the timeout.
  void answer(const Refusal& refusal, int master_port);

  /// Returns by node the client that is its tsprun; -1: node 0, or a node that has gone.
  const std::vector<int>& links() const { return links_; }

 private:
  /// State of one node.
  struct JoiningNode {
    bool came = false;
    std::optional<Agreement> proof = std::nullopt;  ///< its files' digests, once it has sent them
    std::uint64_t sign_ns = 0;                      ///< time of its last sign of life
  };
  void heard(int client, const std::string& key, const std::vector<std::byte>& value);
  void greet(int client, const std::string& key, const JoinRequest& arrival);
  void gone(int client, const std::string& why);
  void compare(int node, const char* what, const Agreement& theirs, const Agreement& ours);
  void compare_proofs(int node);
  void read_files(const Inputs& inputs);
  void look(int patience_ms);
  std::vector<int> missing() const;
  int silent() const;
  bool all_proven() const;
  void set(const std::string& nonce, std::string_view text);
  JoiningNode& joining(int node) { return joining_[static_cast<std::size_t>(node)]; }
  const JoiningNode& joining(int node) const { return joining_[static_cast<std::size_t>(node)]; }

  bootstrap::StoreServer& server_;
  int nodes_;
  std::uint64_t timeout_ns_;
  JoinRequest mine_;
  std::optional<Agreement> proof_;  ///< digests of node 0's own files, once they are read
  std::vector<JoiningNode> joining_;
  std::vector<int> links_;
  std::vector<std::string> asked_;  ///< nonces whose nodes wait for an answer
  std::set<int> listening_;         ///< the clients of those nodes
  Refusal refusal_;
};

}  // namespace tsprun::detail::launcher
