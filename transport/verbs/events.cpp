// Polls the completion queue, and turns failed completions and device events into text.
#include "transport/verbs/events.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <sys/epoll.h>
#include <utility>

namespace tsprun::detail::verbs {

namespace {

// Returns the enumerator's name: libibverbs has only descriptions, but users search for the name.
const char* status_name(ibv_wc_status status) {
#define TSP_X(x) \
  case x: return #x;
  switch (status) {
    TSP_X(IBV_WC_SUCCESS)
    TSP_X(IBV_WC_LOC_LEN_ERR)
    TSP_X(IBV_WC_LOC_QP_OP_ERR)
    TSP_X(IBV_WC_LOC_EEC_OP_ERR)
    TSP_X(IBV_WC_LOC_PROT_ERR)
    TSP_X(IBV_WC_WR_FLUSH_ERR)
    TSP_X(IBV_WC_MW_BIND_ERR)
    TSP_X(IBV_WC_BAD_RESP_ERR)
    TSP_X(IBV_WC_LOC_ACCESS_ERR)
    TSP_X(IBV_WC_REM_INV_REQ_ERR)
    TSP_X(IBV_WC_REM_ACCESS_ERR)
    TSP_X(IBV_WC_REM_OP_ERR)
    TSP_X(IBV_WC_RETRY_EXC_ERR)
    TSP_X(IBV_WC_RNR_RETRY_EXC_ERR)
    TSP_X(IBV_WC_LOC_RDD_VIOL_ERR)
    TSP_X(IBV_WC_REM_INV_RD_REQ_ERR)
    TSP_X(IBV_WC_REM_ABORT_ERR)
    TSP_X(IBV_WC_INV_EECN_ERR)
    TSP_X(IBV_WC_INV_EEC_STATE_ERR)
    TSP_X(IBV_WC_FATAL_ERR)
    TSP_X(IBV_WC_RESP_TIMEOUT_ERR)
    TSP_X(IBV_WC_GENERAL_ERR)
    TSP_X(IBV_WC_TM_ERR)
    TSP_X(IBV_WC_TM_RNDV_INCOMPLETE)
  }
#undef TSP_X
  return "unknown status";
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

std::string describe(const ibv_wc& failed) {
  return fmt::format("{} ({}), vendor error {:#x}, queue pair {}", status_name(failed.status),
                     library().wc_status_str(failed.status), failed.vendor_err, failed.qp_num);
}

Events::Events(ibv_context* device, int entries, int local_rank)
    : device_(device),
      vector_(local_rank % std::max(1, device->num_comp_vectors)),
      most_(std::numeric_limits<int>::max()),
      channel_(library().create_comp_channel(device)) {
  if (!channel_) throw system_error(Cause::refused, "verbs: no completion channel", errno);
  ibv_device_attr attributes{};
  if (library().query_device(device, &attributes) == 0) most_ = std::max(1, attributes.max_cqe);
  make(std::min(entries, most_));
  epoll_ = posix::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) throw system_error(Cause::refused, "verbs: epoll_create1", errno);
  for (const int fd : {channel_->fd, device->async_fd}) {
    set_nonblocking(fd);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw system_error(Cause::refused, "verbs: epoll_ctl", errno);
  }
}

Events::~Events() {
  disarm();  // ibv_destroy_cq would wait for ever for notifications that aren't acknowledged
}

void Events::make(int entries) {
  std::unique_ptr<ibv_cq, DestroyQueue> queue(library().create_cq(device_, entries, nullptr, channel_.get(), vector_));
  if (!queue) throw system_error(Cause::refused, fmt::format("verbs: no completion queue of {} entries", entries), errno);
  ibv_req_notify_cq(queue.get(), 0);  // it may be made between arm() and a sleep
  queues_.push_back(std::move(queue));
  made_ += entries;
  left_ = entries;
}

void Events::require(int entries) const {
  if (entries <= most_) return;
  throw Error(Cause::refused, fmt::format("verbs: {} completions are needed at once, {} has room for {}", entries,
                                          library().get_device_name(device_->device), most_));
}

ibv_cq* Events::queue_for(int entries) {
  require(entries);
  if (left_ < entries) make(std::clamp(made_, entries, most_));
  return queues_.back().get();
}

void Events::arm() {
  for (const auto& queue : queues_) ibv_req_notify_cq(queue.get(), 0);
}

void Events::disarm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library().get_cq_event(channel_.get(), &queue, &context) == 0) library().ack_cq_events(queue, 1);
}

bool Events::next(DeviceEvent& event) {
  ibv_async_event found{};
  if (library().get_async_event(device_, &found) != 0) return false;
  event = {};
  event.text = library().event_type_str(found.event_type);
  switch (found.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      event.breaks = DeviceEvent::Extent::queue_pair;
      event.queue_pair = found.element.qp->qp_num;
      break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL: event.breaks = DeviceEvent::Extent::device; break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
      event.port = found.element.port_num;
      event.port_changed = true;
      event.port_is_up = found.event_type == IBV_EVENT_PORT_ACTIVE;
      event.addresses_changed = event.port_is_up;
      break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      event.port = found.element.port_num;
      event.addresses_changed = true;
      break;
    default: break;
  }
  library().ack_async_event(&found);
  return true;
}

}  // namespace tsprun::detail::verbs
