// The Python module tsprun_torch._tsprun: makes process groups, and leaves the job.
#include "process_group.h"

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace tsprun::torch_binding {

PYBIND11_MODULE(_tsprun, module) {
  module.doc() = "torch.distributed's process groups on tsprun's collectives";
  py::class_<TsprunGroup, GroupBase, c10::intrusive_ptr<TsprunGroup>>(module, "ProcessGroupTsprun")
      .def("coalesced", &TsprunGroup::coalesced, py::call_guard<py::gil_scoped_release>(),
           "Returns one work object for all operations since _start_coalescing(), which are on their way, each by itself.");
  module.def(
      "make_group",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::vector<int>& members,
         std::optional<int> stream, std::chrono::milliseconds timeout, int world_rank, int world_size, std::string name) {
        const py::gil_scoped_release others_run;
        std::optional<Stream> shared;
        if (stream) shared = static_cast<Stream>(*stream);
        return c10::make_intrusive<TsprunGroup>(membership(store, world_rank, world_size), store, rank, size, members, shared,
                                                timeout, std::move(name));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("members"), py::arg("stream"), py::arg("timeout"),
      py::arg("world_rank"), py::arg("world_size"), py::arg("name") = "tsprun",
      "Makes the process group of the world ranks `members` (none: all), after joining the job if this process hasn't yet. Its\n"
      "collectives are those of stream `stream`, or have a channel of their own (None).");
  module.def(
      "uses", [](int stream) { return TsprunGroup::uses(static_cast<Stream>(stream)); }, py::arg("stream"),
      "Returns True if a group of this process that has others as members uses the stream.");
  module.def("use_heap", &use_heap, py::arg("smallest") = std::size_t{64} << 10, py::call_guard<py::gil_scoped_release>(),
             "Makes tensors of `smallest` bytes or more lie in the rank's heap from now on, where there is room, so that\n"
             "collectives move them with one copy. Call it after init_process_group() and before the model is made. A process\n"
             "that is forked from this one shares these tensors with it instead of having copies.");
  module.def(
      "fail", &fail, py::arg("text"), py::call_guard<py::gil_scoped_release>(),
      "Ends the job for a reason of the program's own: this call, and all ranks out of whatever they wait in, raise an error\n"
      "with this text, which names this rank.");
  module.def("leave", &leave, py::arg("only_if_failed") = false, py::call_guard<py::gil_scoped_release>(),
             "Leaves the job: completes what is pending, and waits until the other ranks leave, too; at most for TSP_TIMEOUT.");
  module.def("abort", &abort, py::arg("text"), py::call_guard<py::gil_scoped_release>(),
             "Ends the job with this text and leaves it at once.");
}

}  // namespace tsprun::torch_binding
