// The functions of libibverbs. The library is loaded when RDMA is first looked for: only machines with RDMA need it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace tsprun::detail::verbs {

/// The functions that this room calls, without "ibv_" before their names. What the header itself defines, such as ibv_poll_cq(3),
/// needs no library and is called by its own name.
struct Functions {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port_of_old;  ///< see query_port()
  decltype(&::_ibv_query_gid_table) query_gid_table;
  decltype(&::_ibv_query_gid_ex) query_gid_ex;
  decltype(&::ibv_query_pkey) query_pkey;
  decltype(&::ibv_port_state_str) port_state_str;
  decltype(&::ibv_event_type_str) event_type_str;
  decltype(&::ibv_wc_status_str) wc_status_str;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;  ///< takes optional kinds of access, and leaves out those unknown to the kernel
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_fork_init) fork_init;
  decltype(&::ibv_is_fork_initialized) is_fork_initialized;
};

/// Returns the functions of libibverbs, which the first call loads. Any thread may call it. Throws Error(refused) if the library
/// isn't installed or is too old.
const Functions& library();

/// Returns why library() would throw; empty: it wouldn't.
std::string library_trouble();

/// Returns true if forked children of this process would disturb what the NIC writes, had ibv_fork_init(3) not been called: then
/// registering memory takes it from children, shared memory too, until somebody gives it back (madvise(2), MADV_DOFORK).
bool registering_hides_memory();

/// Asks for a port's state, as ibv_query_port(3). Returns 0 or an errno.
int query_port(ibv_context* context, std::uint8_t number, ibv_port_attr& into);

}  // namespace tsprun::detail::verbs
