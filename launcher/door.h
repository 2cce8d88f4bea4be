// Node 0 before a job: who comes to the rendezvous, whether each was started as node 0 was and would read the same files, and
// what all of them are told. Keys as in cluster.h.
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

namespace tsprun::launcher {

class Door {
 public:
  /// Listens to the server until it is destroyed. `mine`: what node 0 was started with, and why it can't start the job, if it
  /// can't.
  Door(bootstrap::StoreServer& server, int nodes, std::uint64_t timeout_ns, const Arrival& mine);
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  ~Door();

  /// Reads node 0's files, and waits until all nodes have come and have read theirs. What it returns is why the job can't start.
  Refusal wait(const Inputs& inputs);
  /// Says so to all who came, or "ok PORT", and after a refusal waits until they have left with it, up to the timeout.
  void answer(const Refusal& refusal, int master_port);

  /// The client that is node I's tsprun; -1: node 0, or one that has gone.
  const std::vector<int>& links() const { return links_; }

 private:
  /// What has come of a node so far.
  struct Guest {
    bool came = false;
    std::optional<Agreement> proof = std::nullopt;  ///< its files' digests
    std::uint64_t sign_ns = 0;                      ///< of life, the last one
  };
  void heard(int client, const std::string& key, const std::vector<std::byte>& value);
  void greet(int client, const std::string& key, const Arrival& arrival);
  void gone(int client, const std::string& why);
  void compare(int node, const char* what, const Agreement& theirs, const Agreement& ours);
  void compare_proofs(int node);
  void read_files(const Inputs& inputs);
  void look(int patience_ms);
  std::vector<int> missing() const;
  int silent() const;
  bool all_proven() const;
  void set(const std::string& nonce, std::string_view text);
  Guest& guest(int node) { return guests_[static_cast<std::size_t>(node)]; }
  const Guest& guest(int node) const { return guests_[static_cast<std::size_t>(node)]; }

  bootstrap::StoreServer& server_;
  int nodes_;
  std::uint64_t timeout_ns_;
  Arrival mine_;
  std::optional<Agreement> proof_;  ///< node 0's own files' digests
  std::vector<Guest> guests_;
  std::vector<int> links_;
  std::vector<std::string> asked_;  ///< nonces whose nodes wait for an answer
  std::set<int> listening_;         ///< the clients that do
  Refusal refusal_;
};

}  // namespace tsprun::launcher
