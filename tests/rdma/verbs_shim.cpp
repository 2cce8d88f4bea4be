// Stands between tsprun and libibverbs, so that a real provider becomes an adapter unlike it: answers and errors are altered,
// bytes never moved. Preloaded (LD_PRELOAD), it gives itself out for libibverbs.so.1; what it doesn't define is found in the
// library itself, which it is linked with. What it alters stands in the variable RDMA_SHIM, words separated by blanks; a program
// may set another one between its scenarios, and calls are counted anew then.
//
//   create_qp@N=E create_cq@N=E modify_qp@N=E reg_mr@N=E post_send@N=E   the N-th call and all later ones fail with errno E
//   inline=B         queue pairs with more than B bytes of inline data can't be made
//   ports=K          the device has K ports; those after the first are down
//   transport=T      the device's transport is of this type (ibv_transport_type): EFA's is -1
//   infiniband       the port's link layer is InfiniBand
//   grh              the port needs global routing headers (IBV_QPF_GRH_REQUIRED)
//   max_msg=B        the port's largest message
//   max_cqe=K        a completion queue has room for K entries
//   pkeys=P,P        the port's partition keys
//   no_gid_table     the GID table can't be had at once, as if it were too long
//   foreign          the GID table begins with an address of another network namespace, 10.99.0.1
//   fail@N=S         completion N and all later ones have this status (ibv_wc_status)
//   lose@N=S         of the queue pair of completion N this and all later ones have this status
//   reverse          completions of different queue pairs come in reverse order, as far as one poll finds them
//   cq_error         the completion queue can't be read
#include <infiniband/verbs.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <string_view>
#include <vector>

// The header hides these names behind macros.
#undef ibv_query_port
#undef ibv_reg_mr

namespace {

/// What RDMA_SHIM says, and what was counted since it says so.
struct Settings {
  std::string text;
  long calls[7] = {};  // of create_qp, reg_mr, post_send, completions, create_cq, modify_qp, and completions of any queue pair
  unsigned lost = 0;   // the queue pair whose completions fail, and its device
  const ibv_context* lost_by = nullptr;
  std::string seen;  // what queue pairs were told: shim_seen()

  /// Returns the number after `word`=; `absent` if it isn't there. A word without a value counts as 1.
  long number(std::string_view word, long absent) const {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      if (at != 0 && text[at - 1] != ' ') continue;
      if (end == text.size() || text[end] == ' ') return 1;
      if (text[end] == '=') return std::strtol(text.c_str() + end + 1, nullptr, 0);
    }
    return absent;
  }
  bool has(std::string_view word) const { return number(word, 0) != 0; }
  /// Counts a call of `word`. Returns the number that it shall fail with; 0: it needn't.
  long failure(std::string_view word, std::size_t counter) {
    const long call = ++calls[counter];
    const std::string begin = std::string(word) + "@";
    const std::size_t at = text.find(begin);
    if (at == std::string::npos) return 0;
    char* rest = nullptr;
    const long first = std::strtol(text.c_str() + at + begin.size(), &rest, 10);
    return call >= first ? std::strtol(rest + 1, nullptr, 0) : 0;
  }
};

Settings& settings() {
  static Settings now;
  const char* text = std::getenv("RDMA_SHIM");
  if (text == nullptr) text = "";
  if (now.text != text) {
    now = {};
    now.text = text;
  }
  return now;
}

/// Returns the library's own function of this name.
template <class Function>
Function* own(const char* name, Function* /*type*/) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define OWN(name) own(#name, &::name)

int (*provider_poll)(ibv_cq*, int, ibv_wc*) = nullptr;
int (*provider_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
decltype(verbs_context::query_port) provider_query_port = nullptr;

void alter(ibv_port_attr& port, std::uint8_t number) {
  const Settings& now = settings();
  if (number > 1) port.state = IBV_PORT_DOWN;
  if (now.has("infiniband")) port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  if (now.has("grh")) port.flags |= IBV_QPF_GRH_REQUIRED;
  port.max_msg_sz = static_cast<std::uint32_t>(now.number("max_msg", port.max_msg_sz));
  if (const std::size_t at = now.text.find("pkeys="); at != std::string::npos) {
    const std::string_view list = std::string_view(now.text).substr(at, now.text.find(' ', at) - at);
    port.pkey_tbl_len = static_cast<std::uint16_t>(std::count(list.begin(), list.end(), ',') + 1);
  }
}

int poll(ibv_cq* queue, int room, ibv_wc* into) {
  Settings& now = settings();
  if (now.has("cq_error")) return -1;
  const int count = provider_poll(queue, room, into);
  for (int i = 0; i < count; ++i) {
    if (const long status = now.failure("fail", 3); status != 0) into[i].status = static_cast<ibv_wc_status>(status);
    if (const long status = now.failure("lose", 6); status != 0) {
      if (now.lost == 0) now.lost = into[i].qp_num, now.lost_by = queue->context;
      if (now.lost == into[i].qp_num && now.lost_by == queue->context) into[i].status = static_cast<ibv_wc_status>(status);
    }
  }
  if (count > 1 && now.has("reverse")) {
    // Those of one queue pair stay in order: the later pair's first.
    std::stable_sort(into, into + count, [](const ibv_wc& a, const ibv_wc& b) { return a.qp_num > b.qp_num; });
  }
  return count;
}

int post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** failed) {
  if (const long error = settings().failure("post_send", 2); error != 0) {
    *failed = request;
    return static_cast<int>(error);
  }
  return provider_post(pair, request, failed);
}

int query_port(ibv_context* context, std::uint8_t number, ibv_port_attr* into, std::size_t bytes) {
  const int error = provider_query_port(context, settings().number("ports", 1) > 1 ? 1 : number, into, bytes);
  if (error == 0) alter(*into, number);
  return error;
}

}  // namespace

extern "C" {

/// Returns what queue pairs were told since RDMA_SHIM was set: their last states' attributes.
const char* shim_seen() { return settings().seen.c_str(); }

void* dlopen(const char* file, int flags) noexcept {
  static const auto next = OWN(dlopen);
  Dl_info here{};
  if (file != nullptr && std::strcmp(file, "libibverbs.so.1") == 0 && ::dladdr(reinterpret_cast<void*>(&shim_seen), &here) != 0)
    file = here.dli_fname;
  return next(file, flags);
}

ibv_device** ibv_get_device_list(int* count) {
  ibv_device** list = OWN(ibv_get_device_list)(count);
  for (int i = 0; list != nullptr && list[i] != nullptr; ++i)
    list[i]->transport_type = static_cast<ibv_transport_type>(settings().number("transport", IBV_TRANSPORT_IB));
  return list;
}

ibv_context* ibv_open_device(ibv_device* device) {
  ibv_context* context = OWN(ibv_open_device)(device);
  if (context == nullptr) return nullptr;
  provider_poll = context->ops.poll_cq;
  provider_post = context->ops.post_send;
  context->ops.poll_cq = poll;
  context->ops.post_send = post;
  if (verbs_context* whole = verbs_get_ctx(context); whole != nullptr && whole->query_port != nullptr) {
    provider_query_port = whole->query_port;
    whole->query_port = query_port;
  }
  return context;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* into) {
  const int error = OWN(ibv_query_device)(context, into);
  into->phys_port_cnt = static_cast<std::uint8_t>(settings().number("ports", into->phys_port_cnt));
  into->max_cqe = static_cast<int>(settings().number("max_cqe", into->max_cqe));
  return error;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t room, std::uint32_t flags, size_t bytes) {
  if (settings().has("no_gid_table")) return -EINVAL;
  ssize_t found = OWN(_ibv_query_gid_table)(context, entries, room, flags, bytes);
  if (found < 0 || static_cast<size_t>(found) >= room || !settings().has("foreign")) return found;
  std::copy_backward(entries, entries + found, entries + found + 1);
  ibv_gid_entry& first = entries[0] = {};
  first.gid_index = 9;
  first.port_num = 1;
  first.gid_type = IBV_GID_TYPE_ROCE_V2;
  first.gid.raw[10] = first.gid.raw[11] = 0xff;
  const std::array<std::uint8_t, 4> address = {10, 99, 0, 1};
  std::copy(address.begin(), address.end(), first.gid.raw + 12);
  return found + 1;
}

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* into) {
  const Settings& now = settings();
  std::size_t at = now.text.find("pkeys=");
  if (at == std::string::npos) return OWN(ibv_query_pkey)(context, port, index, into);
  for (at += 6; index > 0 && at != std::string::npos; --index) at = now.text.find(',', at) + 1;
  *into = htons(static_cast<std::uint16_t>(std::strtol(now.text.c_str() + at, nullptr, 0)));
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* memory, size_t bytes, int access) {
  if (const long error = settings().failure("reg_mr", 1); error != 0) {
    errno = static_cast<int>(error);
    return nullptr;
  }
  return OWN(ibv_reg_mr)(domain, memory, bytes, access);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* memory, size_t bytes, std::uint64_t address, unsigned access) {
  if (const long error = settings().failure("reg_mr", 1); error != 0) {
    errno = static_cast<int>(error);
    return nullptr;
  }
  return OWN(ibv_reg_mr_iova2)(domain, memory, bytes, address, access);
}

ibv_cq* ibv_create_cq(ibv_context* device, int entries, void* context, ibv_comp_channel* channel, int vector) {
  if (const long error = settings().failure("create_cq", 4); error != 0) {
    errno = static_cast<int>(error);
    return nullptr;
  }
  return OWN(ibv_create_cq)(device, entries, context, channel, vector);
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  Settings& now = settings();
  if (const long error = now.failure("create_qp", 0); error != 0) {
    errno = static_cast<int>(error);
    return nullptr;
  }
  const auto most = static_cast<std::uint32_t>(now.number("inline", attributes->cap.max_inline_data));
  if (attributes->cap.max_inline_data > most) {
    errno = EINVAL;
    return nullptr;
  }
  ibv_qp* pair = OWN(ibv_create_qp)(domain, attributes);
  if (pair != nullptr) attributes->cap.max_inline_data = std::min(attributes->cap.max_inline_data, most);
  return pair;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  std::array<char, 160> text{};
  const ibv_ah_attr& way = attributes->ah_attr;
  if (attributes->qp_state == IBV_QPS_INIT) {
    std::snprintf(text.data(), text.size(), "INIT pkey_index=%d; ", attributes->pkey_index);
    attributes->pkey_index = 0;  // soft-RoCE has no other
  } else if (attributes->qp_state == IBV_QPS_RTR) {
    std::snprintf(text.data(), text.size(), "RTR mtu=%d sl=%d global=%d sgid=%d tc=%d hops=%d; ", attributes->path_mtu, way.sl,
                  way.is_global, way.grh.sgid_index, way.grh.traffic_class, way.grh.hop_limit);
  } else if (attributes->qp_state == IBV_QPS_RTS) {
    std::snprintf(text.data(), text.size(), "RTS timeout=%d retries=%d; ", attributes->timeout, attributes->retry_cnt);
  }
  settings().seen += text.data();
  if (const long error = settings().failure("modify_qp", 5); error != 0) return static_cast<int>(error);
  return OWN(ibv_modify_qp)(pair, attributes, mask);
}

}  // extern "C"
