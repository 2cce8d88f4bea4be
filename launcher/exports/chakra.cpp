// Turns programs into Chakra's nodes.
#include "launcher/exports/chakra.h"

#include "launcher/exports/protobuf.h"
#include "launcher/refuse.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

// Numbers of et_def.proto.
constexpr int kMetadataVersion = 1;
enum AttributeField { kAttributeName = 1, kInt32 = 7, kInt64 = 9, kUint64 = 13, kBool = 27, kString = 29 };
enum NodeField { kId = 1, kName = 2, kType = 3, kDataDeps = 5, kDuration = 7, kAttribute = 10 };
enum NodeType { kComp = 4, kSend = 5, kRecv = 6, kCollective = 7 };
enum CollectiveType {
  kAllReduce = 0,
  kReduce = 1,
  kAllGather = 2,
  kGather = 3,
  kScatter = 4,
  kBroadcast = 5,
  kAllToAll = 6,
  kReduceScatter = 7,
  kBarrier = 9
};

CollectiveType type_of(Op op) {
  switch (op) {
    case Op::all_reduce: return kAllReduce;
    case Op::reduce: return kReduce;
    case Op::all_gather: return kAllGather;
    case Op::gather: return kGather;
    case Op::scatter: return kScatter;
    case Op::broadcast: return kBroadcast;
    case Op::all_to_all: return kAllToAll;
    case Op::reduce_scatter: return kReduceScatter;
    case Op::barrier:
    case Op::send:
    case Op::recv:
    case Op::send_recv: break;
  }
  return kBarrier;
}

/// Returns the bytes that this rank brings to a call or, where only a root does, takes from it.
std::uint64_t size_of_call(const ProgramCall& call) {
  const Arguments& arguments = call.arguments;
  switch (call.op) {  // the buffers of these two may have gaps
    case Op::reduce_scatter: return arguments.chunks.total() * size_of(call.dtype);
    case Op::all_to_all: return arguments.send_chunks.total() * size_of(call.dtype);
    default: return call.bytes;
  }
}

/// Names of groups, by the number that all members give them.
using GroupNames = std::map<std::uint64_t, std::string>;

/// Writes one rank's nodes.
class RankWriter {
 public:
  RankWriter(const theory::PricedProgram& of, int rank, bool blocking, GroupNames& names)
      : program_(of.program), seconds_(of.kernel_seconds), rank_(rank), blocking_(blocking), names_(names) {}

  std::string write() {
    bytes_ = ProtobufMessage().text(kMetadataVersion, "0.0.4").with_length();
    for (const ProgramItem& item : program_.items) {
      switch (item.kind) {
        case ItemKind::kernel: kernel(item.index); break;
        case ItemKind::post:
        case ItemKind::call:
          post(program_.calls[item.index], item.stream);
          if (blocking_ || item.kind == ItemKind::call) wait(item.stream, item.amount);
          break;
        case ItemKind::wait: wait(item.stream, item.amount); break;
        case ItemKind::take:
        case ItemKind::give:
        case ItemKind::stage: break;
      }
    }
    return std::move(bytes_);
  }

 private:
  static void attribute(ProtobufMessage& node, std::string_view name, AttributeField type, std::uint64_t value) {
    node.message(kAttribute, ProtobufMessage().text(kAttributeName, name).number(type, value));
  }
  static void attribute(ProtobufMessage& node, std::string_view name, std::string_view value) {
    node.message(kAttribute, ProtobufMessage().text(kAttributeName, name).text(kString, value));
  }

  ProtobufMessage node(std::string_view name, NodeType type) {
    ProtobufMessage node;
    node.number(kId, next_++).text(kName, name).number(kType, type);
    attribute(node, "is_cpu_op", kBool, 0);
    return node;
  }

  void kernel(std::uint32_t index) {
    const KernelCost& cost = program_.costs[index];
    ProtobufMessage kernel = node(cost.kernel, kComp);
    kernel.numbers(kDataDeps, after_);
    const std::int64_t begin = std::llround(computed_ * 1e6);
    computed_ += seconds_[index];
    kernel.number(kDuration, static_cast<std::uint64_t>(std::llround(computed_ * 1e6) - begin));
    attribute(kernel, "num_ops", kInt64, static_cast<std::uint64_t>(cost.flops));
    attribute(kernel, "tensor_size", kUint64, cost.bytes_read + cost.bytes_written);
    bytes_ += kernel.with_length();
    after_ = {next_ - 1};
  }

  void post(const ProgramCall& call, std::uint8_t stream) {
    Line& line = lines_[stream];
    std::vector<std::uint64_t> needs = after_;
    if (!line.last.empty()) needs.insert(needs.end(), line.last.begin(), line.last.end());
    std::vector<std::uint64_t> nodes;
    const auto add = [&](ProtobufMessage& node) {
      node.numbers(kDataDeps, needs);
      attribute(node, "comm_size", kInt64, size_of_call(call));
      attribute(node, "stream", name(static_cast<Stream>(stream)));
      attribute(node, "purpose", name(call.purpose));
      bytes_ += node.with_length();
      nodes.push_back(next_ - 1);
    };
    const auto message = [&](NodeType type, int from, int to) {
      if (from == to) return;
      ProtobufMessage end_of_it = node(type == kSend ? "send" : "recv", type);
      for (const auto& [field, of] : {std::pair("comm_src", from), std::pair("comm_dst", to), std::pair("comm_tag", int{stream})})
        attribute(end_of_it, field, kInt32, static_cast<std::uint64_t>(of));
      add(end_of_it);
    };
    switch (call.op) {
      case Op::send: message(kSend, rank_, call.root); break;
      case Op::recv: message(kRecv, call.root, rank_); break;
      case Op::send_recv:
        message(kSend, rank_, call.root);
        message(kRecv, call.source, rank_);
        break;
      default: {
        if (program_.groups.at(call.group).size() == 1) break;
        ProtobufMessage collective = node(name(call.op), kCollective);
        attribute(collective, "comm_type", kInt64, type_of(call.op));
        const auto group = names_.try_emplace(call.group, std::to_string(names_.size())).first;
        attribute(collective, "pg_name", group->second);
        add(collective);
      }
    }
    if (nodes.empty()) nodes = needs;  // what follows it follows what it would have followed
    line.last = nodes;
    line.operations.push_back(std::move(nodes));
  }

  void wait(std::uint8_t stream, std::uint64_t number) {
    if (number == 0) return;  // it was posted before the step
    for (const std::uint64_t node : lines_[stream].operations[number - 1]) {
      if (std::ranges::find(after_, node) == after_.end()) after_.push_back(node);
    }
  }

  /// A stream.
  struct Line {
    std::vector<std::vector<std::uint64_t>> operations;  // nodes of each that was posted
    std::vector<std::uint64_t> last;                     // of the latest
  };
  const Program& program_;
  const std::vector<double>& seconds_;
  int rank_;
  bool blocking_;
  GroupNames& names_;
  std::string bytes_;
  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> after_;  // what the next kernel needs
  double computed_ = 0;               // seconds
  std::array<Line, kQueues> lines_;
};

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.flush();
  if (!file) refuse(fmt::format("--export chakra: writing {} failed", path));
}

}  // namespace

std::string chakra_file(const std::string& folder, int rank) { return fmt::format("{}/step.{}.et", folder, rank); }

void write_chakra(std::span<const theory::PricedProgram> ranks, bool blocking, const std::string& folder) {
  GroupNames names;
  nlohmann::ordered_json groups = nlohmann::ordered_json::object();
  int rank = 0;
  for (const theory::PricedProgram& of : ranks) {
    write_file(chakra_file(folder, rank), RankWriter(of, rank, blocking, names).write());
    for (const auto& [number, members] : of.program.groups) {
      if (const auto known = names.find(number); known != names.end()) groups[known->second] = members;
    }
    ++rank;
  }
  write_file(folder + "/groups.json", groups.dump() + "\n");
  // A larger job may have been written there before.
  std::error_code ignored;
  while (std::filesystem::remove(chakra_file(folder, rank), ignored)) ++rank;
}

}  // namespace tsprun::detail::launcher
