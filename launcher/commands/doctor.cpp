// `tsprun doctor`: what this machine can do, and why each transport can or can't be used.
#include "core/collectives/choice.h"
#include "launcher/blas_trial.h"
#include "launcher/commands/command.h"
#include "launcher/commands/doctor_rdma.h"
#include "launcher/standard_output.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/machine.h"
#include "transport/shm/node_memory.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

std::string text_in_mebibytes(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }
std::string limit_text(std::uint64_t limit) { return limit == UINT64_MAX ? "unlimited" : std::to_string(limit); }
ordered_json limit_json(std::uint64_t limit) { return limit == UINT64_MAX ? ordered_json(nullptr) : ordered_json(limit); }

/// Makes the smallest node memory and writes to it: this proves that shm works here, or tells why it doesn't.
Trial try_shared_memory() {
  Trial trial{true, "a memfd was made, mapped and written"};
  try {
    shm::NodeLayout layout;
    layout.heap_bytes = std::uint64_t{1} << 20;
    const shm::NodeMemory memory = shm::NodeMemory::create_memfd(layout);
    memory.heap(0).front() = std::byte{1};
  } catch (const Error& error) {
    trial = {false, error.what()};
  }
  return trial;
}

class Doctor : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "doctor",
            .help = "what this machine can do: cores and quota, memory, limits, RDMA devices, transports and why, algorithms",
            .examples = {"tsprun doctor", "tsprun --json doctor.json doctor"},
            .ranks = RankUse::on_paper};
  }

  int run(const GlobalOptions& global, Report& report) override {
    const std::string overrides = Environment().algorithms();
    const ChoiceTable choices(overrides);
    const RdmaFindings rdma = find_rdma(global);
    const Trial shm = try_shared_memory();
    const Trial tcp = try_tcp();
    const Trial blas = try_blas(1);
    const std::vector<WayRow> ways = likely_ways(global, shm, rdma.verbs, tcp);
    const machine::Space space = machine::shared_memory_file_system();
    const double quota = machine::cpu_quota();
    const std::string policy = machine::huge_page_policy_for_shared_memory();
    const int cores = machine::usable_cores();

    const auto row = [](std::string_view key, const std::string& value) { print("{:<22}{}\n", key, value); };
    row("cores", fmt::format("{} usable: {} by affinity, quota {}", cores, machine::allowed_cores(),
                             quota > 0 ? fmt::format("{:.2f}", quota) : "none"));
    row("vector level", machine::vector_level());
    row("OpenBLAS", fmt::format("{}: {}", blas.possible ? "yes" : "no", blas.why));
    row("memory", fmt::format("{} available of {}", text_in_mebibytes(machine::available_memory()),
                              text_in_mebibytes(machine::total_memory())));
    row("/dev/shm", fmt::format("{} free of {} (ranks started by tsprun don't use it)", text_in_mebibytes(space.free),
                                text_in_mebibytes(space.total)));
    row("heap reservation", fmt::format("{} of address space a rank; only what is touched costs memory",
                                        text_in_mebibytes(shm::default_heap_bytes())));
    row("open files", limit_text(machine::limit_open_files()));
    row("processes", limit_text(machine::limit_processes()));
    row("locked memory", fmt::format("{} bytes", limit_text(machine::limit_locked_memory())));
    row("address space", fmt::format("{} bytes", limit_text(machine::limit_address_space())));
    row("huge pages for shm", policy.empty() ? "unknown to this kernel" : fmt::format("{} (nothing here needs them)", policy));
    row("ranks on this node",
        fmt::format("at most {}; up to {} with a core of their own, more share cores by yielding and sleeping",
                    shm::kMaxLocalRanks, cores));
    print("\nRDMA ports\n");
    for (const std::string& line : rdma.lines) print("{}\n", line);
    print("\ntransports\n");
    const std::pair<const char*, const Trial*> trials[] = {{"shm", &shm}, {"verbs", &rdma.verbs}, {"tcp", &tcp}};
    for (const auto& [kind, trial] : trials) print("  {:<6}{}: {}\n", kind, trial->possible ? "yes" : "no", trial->why);
    print("\nwhy this transport\n");
    for (const WayRow& way : ways) print("  {:<12} {:<6}{}\n", way.between, way.kind, way.why);
    print("\nalgorithms (first line that fits; TSP_ALGORITHMS overrides{})\n{}", overrides.empty() ? "" : ": " + overrides,
          choices.print());
    print("\nalgorithms that there are\n");
    for (int i = 0; i < kOps; ++i) print("{:<15} {}\n", name(static_cast<Op>(i)), algorithm_names(static_cast<Op>(i)));

    ordered_json& json = report.root()["doctor"];
    json["cores"] = {{"usable", cores},
                     {"affinity", machine::allowed_cores()},
                     {"quota", quota > 0 ? ordered_json(quota) : ordered_json(nullptr)}};
    json["vector_level"] = machine::vector_level();
    json["openblas"] = {{"possible", blas.possible}, {"why", blas.why}};
    json["memory"] = {{"available_bytes", machine::available_memory()}, {"total_bytes", machine::total_memory()}};
    json["dev_shm"] = {{"free_bytes", space.free}, {"total_bytes", space.total}};
    json["heap_reservation_bytes"] = shm::default_heap_bytes();
    json["limits"] = {{"open_files", limit_json(machine::limit_open_files())},
                      {"processes", limit_json(machine::limit_processes())},
                      {"locked_memory_bytes", limit_json(machine::limit_locked_memory())},
                      {"address_space_bytes", limit_json(machine::limit_address_space())}};
    json["huge_page_policy_for_shared_memory"] = policy.empty() ? ordered_json(nullptr) : ordered_json(policy);
    json["most_local_ranks"] = shm::kMaxLocalRanks;
    json["rdma"] = rdma.json;
    json["transports"] = ordered_json::array();
    for (const auto& [kind, trial] : trials)
      json["transports"].push_back({{"kind", kind}, {"possible", trial->possible}, {"why", trial->why}});
    json["ways"] = ordered_json::array();
    for (const WayRow& way : ways) json["ways"].push_back({{"between", way.between}, {"kind", way.kind}, {"why", way.why}});
    ordered_json& algorithms = json["algorithms"] = ordered_json::array();
    for (const ChoiceRow& choice : choices.rows()) {
      algorithms.push_back({{"op", std::string(tsprun::name(choice.op))},
                            {"max_bytes", limit_json(choice.max_bytes)},
                            {"max_ranks", choice.max_ranks == std::numeric_limits<int>::max() ? ordered_json(nullptr)
                                                                                              : ordered_json(choice.max_ranks)},
                            {"needs_views", choice.needs_views},
                            {"algorithm", std::string(tsprun::name(choice.algorithm))}});
    }
    return shm.possible && blas.possible ? 0 : 1;
  }
};

}  // namespace

std::unique_ptr<Command> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace tsprun::detail::launcher
