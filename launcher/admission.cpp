// Handles nodes as they come: their options, their files, their silence and their departure.
#include "launcher/admission.h"

#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <poll.h>

namespace tsprun::detail::launcher {

Admission::Admission(bootstrap::StoreServer& server, int nodes, std::uint64_t timeout_ns, const JoinRequest& mine)
    : server_(server),
      nodes_(nodes),
      timeout_ns_(timeout_ns),
      mine_(mine),
      joining_(static_cast<std::size_t>(nodes)),
      links_(static_cast<std::size_t>(nodes), -1) {
  server_.on_set = [this](int client, const std::string& key, const std::vector<std::byte>& value) { heard(client, key, value); };
  server_.on_gone = [this](int client, const std::string& why, bool) { gone(client, why); };
}

Admission::~Admission() {
  server_.on_set = nullptr;
  server_.on_gone = nullptr;
}

void Admission::heard(int client, const std::string& key, const std::vector<std::byte>& value) {
  if (key.starts_with("node/")) {
    if (const std::optional<JoinRequest> arrival = JoinRequest::parse(text_of(value))) greet(client, key, *arrival);
    return;
  }
  const auto link = std::find(links_.begin(), links_.end(), client);
  if (link == links_.end()) return;
  const auto node = static_cast<int>(link - links_.begin());
  joining(node).sign_ns = posix::now_ns();
  const std::optional<JoinRequest> proven = key.starts_with("proof/") ? JoinRequest::parse(text_of(value)) : std::nullopt;
  if (!proven) return;
  joining(node).proof = proven->options;
  if (!refusal_ && !proven->trouble.empty()) refusal_.why = fmt::format("node {}: {}", node, proven->trouble);
  compare_proofs(node);
}

void Admission::greet(int client, const std::string& key, const JoinRequest& arrival) {
  if (arrival.attempt != mine_.attempt) {
    set(arrival.nonce, arrival.attempt > mine_.attempt ? std::string(kAgain) : begun_already().text());
    return;
  }
  asked_.push_back(arrival.nonce);
  listening_.insert(client);
  const int node = number_after(key, "node/", nodes_);
  if (node < 1) {
    refusal_.why = fmt::format("a tsprun came as --node-rank {}; 1 to {} belong here", key.substr(5), nodes_ - 1);
    return;
  }
  if (joining(node).came) refusal_.why = fmt::format("two tspruns came as --node-rank {}: every node needs its own", node);
  joining(node) = {.came = true, .sign_ns = posix::now_ns()};
  links_[static_cast<std::size_t>(node)] = client;
  if (!refusal_ && !arrival.trouble.empty()) refusal_.why = fmt::format("node {}: {}", node, arrival.trouble);
  compare(node, "the nodes were started differently", arrival.options, mine_.options);
}

void Admission::gone(int client, const std::string& why) {
  listening_.erase(client);
  const auto link = std::find(links_.begin(), links_.end(), client);
  if (link == links_.end()) return;
  if (!refusal_) spdlog::warn("node {} left before the job began ({})", link - links_.begin(), why);
  joining(static_cast<int>(link - links_.begin())) = {};
  *link = -1;
}

void Admission::compare(int node, const char* what, const Agreement& theirs, const Agreement& ours) {
  const std::string differs = difference(theirs, node, ours, 0);
  if (!refusal_ && !differs.empty()) refusal_.why = fmt::format("{}: {}", what, differs);
}

void Admission::compare_proofs(int node) {
  if (joining(node).proof && proof_) compare(node, "the nodes would read different files", *joining(node).proof, *proof_);
}

void Admission::read_files(const Inputs& inputs) {
  std::uint64_t said_ns = 0;
  const auto tick = [&] {
    look(0);
    if (refusal_) throw Answered();
    if (posix::now_ns() - said_ns < kBusy_ns) return;
    said_ns = posix::now_ns();
    server_.set("busy/0", {});
  };
  try {
    proof_ = short_enough(contents(inputs.files, tick), "files");
  } catch (const Answered&) {
  } catch (const Error& error) {
    mine_.trouble = error.what();
  }
  for (int node = 1; node < nodes_; ++node) compare_proofs(node);
}

void Admission::look(int patience_ms) {
  pollfd watched{server_.descriptor(), POLLIN, 0};
  ::poll(&watched, 1, patience_ms);
  server_.pump();
}

std::vector<int> Admission::missing() const {
  std::vector<int> list;
  for (int node = 1; node < nodes_; ++node) {
    if (!joining(node).came) list.push_back(node);
  }
  return list;
}

/// Returns a node that came and has been silent for too long while it read its files; -1: none.
int Admission::silent() const {
  const std::uint64_t now = posix::now_ns();
  for (int node = 1; node < nodes_; ++node) {
    if (joining(node).came && !joining(node).proof && now - joining(node).sign_ns >= timeout_ns_) return node;
  }
  return -1;
}

bool Admission::all_proven() const {
  return std::all_of(joining_.begin() + 1, joining_.end(), [](const JoiningNode& each) { return each.proof.has_value(); });
}

Refusal Admission::wait(const Inputs& inputs) {
  const double seconds = static_cast<double>(timeout_ns_) * 1e-9;
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  if (mine_.trouble.empty()) read_files(inputs);
  // Even if node 0 itself can't start, it waits for the others, so that they hear the reason.
  while (!refusal_ && (!missing().empty() || (mine_.trouble.empty() && !all_proven()))) {
    if (const std::vector<int> late = missing(); !late.empty() && posix::now_ns() >= deadline) {
      if (!mine_.trouble.empty()) break;
      refusal_.missing = late.front();
      refusal_.why = fmt::format(
          "node{} {} of {} didn't come to {} within {:g} s (--timeout): start tsprun there with --node-rank, the same "
          "--rendezvous and the same secret{}",
          late.size() == 1 ? "" : "s", fmt::join(late, ", "), nodes_, server_.address(), seconds,
          server_.refused_node().empty() ? "" : fmt::format("; {}", server_.refused_node()));
    } else if (const int node = silent(); node >= 0) {
      refusal_.missing = node;
      refusal_.why =
          fmt::format("node {} came, but nothing was heard of it for {:g} s (--timeout) while it read its files", node, seconds);
    } else {
      look(kSlice_ms);
    }
  }
  if (!refusal_ && !mine_.trouble.empty()) refusal_.why = fmt::format("node 0: {}", mine_.trouble);
  return refusal_;
}

void Admission::set(const std::string& nonce, std::string_view text) { server_.set("go/" + nonce, bytes_of(text)); }

void Admission::answer(const Refusal& refusal, int master_port) {
  for (const std::string& nonce : asked_) set(nonce, refusal ? refusal.text() : fmt::format("{}{}", kOk, master_port));
  if (!refusal) return;
  // They leave when they have heard it.
  const std::uint64_t ends = posix::now_ns() + timeout_ns_;
  while (!listening_.empty() && posix::now_ns() < ends) look(kSlice_ms);
}

}  // namespace tsprun::detail::launcher
