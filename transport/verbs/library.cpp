// Finds libibverbs and its functions.
#include "transport/verbs/library.h"

#include "transport/cause.h"
#include "transport/loaded_library.h"

#include <cstddef>

namespace tsprun::detail::verbs {

namespace {

Functions load() {
  const LoadedLibrary loaded("libibverbs.so.1", "by which RDMA devices are used",
                             "Debian's packages libibverbs1 and ibverbs-providers bring it");
  Functions found{};
  const auto find = [&loaded]<class Function>(Function& function, const char* name) { function = loaded.find<Function>(name); };
  find(found.get_device_list, "ibv_get_device_list");
  find(found.free_device_list, "ibv_free_device_list");
  find(found.get_device_name, "ibv_get_device_name");
  find(found.open_device, "ibv_open_device");
  find(found.close_device, "ibv_close_device");
  find(found.query_device, "ibv_query_device");
  find(found.query_port_of_old, "ibv_query_port");
  find(found.query_gid_table, "_ibv_query_gid_table");
  find(found.query_gid_ex, "_ibv_query_gid_ex");
  find(found.query_pkey, "ibv_query_pkey");
  find(found.port_state_str, "ibv_port_state_str");
  find(found.event_type_str, "ibv_event_type_str");
  find(found.wc_status_str, "ibv_wc_status_str");
  find(found.alloc_pd, "ibv_alloc_pd");
  find(found.dealloc_pd, "ibv_dealloc_pd");
  find(found.reg_mr_iova2, "ibv_reg_mr_iova2");
  find(found.dereg_mr, "ibv_dereg_mr");
  find(found.create_comp_channel, "ibv_create_comp_channel");
  find(found.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(found.create_cq, "ibv_create_cq");
  find(found.destroy_cq, "ibv_destroy_cq");
  find(found.get_cq_event, "ibv_get_cq_event");
  find(found.ack_cq_events, "ibv_ack_cq_events");
  find(found.get_async_event, "ibv_get_async_event");
  find(found.ack_async_event, "ibv_ack_async_event");
  find(found.create_qp, "ibv_create_qp");
  find(found.destroy_qp, "ibv_destroy_qp");
  find(found.modify_qp, "ibv_modify_qp");
  find(found.fork_init, "ibv_fork_init");
  find(found.is_fork_initialized, "ibv_is_fork_initialized");
  // Before anything is registered, and only where it is needed: on kernels that copy pinned pages when a process forks (from 5.12
  // on) it would cost an madvise a registration for nothing. Where it fails, somebody has registered before; then it is as
  // without.
  if (found.is_fork_initialized() != IBV_FORK_UNNEEDED) found.fork_init();
  return found;
}

}  // namespace

const Functions& library() {
  static const Functions functions = load();
  return functions;
}

bool registering_hides_memory() { return library().is_fork_initialized() == IBV_FORK_ENABLED; }

std::string library_trouble() {
  try {
    library();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

int query_port(ibv_context* context, std::uint8_t number, ibv_port_attr& into) {
  // As the header's inline function does, which would need the library at link time. Drivers fill all of the structure; the
  // library's own function knows only its first fields.
  into = {};
  const verbs_context* const driver = verbs_get_ctx(context);
  if (driver != nullptr && driver->sz >= sizeof *driver - offsetof(verbs_context, query_port) && driver->query_port != nullptr)
    return driver->query_port(context, number, &into, sizeof into);
  return library().query_port_of_old(context, number, reinterpret_cast<_compat_ibv_port_attr*>(&into));
}

}  // namespace tsprun::detail::verbs
