// Calls libpmix, which answers on a thread of its own.
#include "transport/bootstrap/pmix_store.h"

#include "transport/cause.h"
#include "transport/loaded_library.h"
#include "transport/signals_blocked.h"

#include <fmt/format.h>
#include <pmix.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

namespace tsprun::detail::bootstrap {

namespace {

/// The functions of libpmix.
struct PmixLibrary {
  LoadedLibrary loaded{"libpmix.so.2", "by which ranks that mpirun or srun started on several nodes meet",
                       "Debian's package libpmix2 brings it"};
  decltype(&PMIx_Init) init = loaded.find<decltype(init)>("PMIx_Init");
  decltype(&PMIx_Finalize) finalize = loaded.find<decltype(finalize)>("PMIx_Finalize");
  decltype(&PMIx_Put) put = loaded.find<decltype(put)>("PMIx_Put");
  decltype(&PMIx_Commit) commit = loaded.find<decltype(commit)>("PMIx_Commit");
  decltype(&PMIx_Fence_nb) fence_nb = loaded.find<decltype(fence_nb)>("PMIx_Fence_nb");
  decltype(&PMIx_Get_nb) get_nb = loaded.find<decltype(get_nb)>("PMIx_Get_nb");
  decltype(&PMIx_Error_string) error_string = loaded.find<decltype(error_string)>("PMIx_Error_string");
};

PmixLibrary& library() {
  static PmixLibrary loaded;
  return loaded;
}

void check(pmix_status_t status, std::string_view call) {
  if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
    throw Error(Cause::refused, fmt::format("{}: {}", call, library().error_string(status)));
}

/// An answer of libpmix's thread, and the arguments that it reads meanwhile. Both threads share it, so that an answer after the
/// deadline finds it.
struct PmixAnswer {
  std::string key;
  pmix_info_t option{};
  std::mutex mutex;
  std::condition_variable came;
  bool here = false;
  pmix_status_t status = PMIX_SUCCESS;
  std::vector<std::byte> value;

  static void take(pmix_status_t status, pmix_value_t* value, void* owner) {
    const std::unique_ptr<std::shared_ptr<PmixAnswer>> mine(static_cast<std::shared_ptr<PmixAnswer>*>(owner));
    PmixAnswer& answer = **mine;
    const std::scoped_lock lock(answer.mutex);
    answer.status = status;
    if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_BYTE_OBJECT && value->data.bo.size > 0) {
      answer.value.resize(value->data.bo.size);
      std::memcpy(answer.value.data(), value->data.bo.bytes, value->data.bo.size);
    }
    answer.here = true;
    answer.came.notify_one();
  }
  static void take_status(pmix_status_t status, void* owner) { take(status, nullptr, owner); }
};

/// Waits for the answer to a call that `begin` begins, giving libpmix its argument. Throws Error(stalled) at the timeout.
void await(std::string_view call, std::uint64_t timeout_ns, const std::shared_ptr<PmixAnswer>& answer,
           const std::function<pmix_status_t(void* owner)>& begin) {
  auto owner = std::make_unique<std::shared_ptr<PmixAnswer>>(answer);
  const pmix_status_t begun = begin(owner.get());
  if (begun != PMIX_SUCCESS) {  // nobody will call back
    answer->status = begun;
    return;
  }
  static_cast<void>(owner.release());
  std::unique_lock lock(answer->mutex);
  if (!answer->came.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return answer->here; })) {
    throw Error(Cause::stalled, fmt::format("{} didn't end within {:g} s (TSP_TIMEOUT): have all ranks begun to join?", call,
                                            static_cast<double>(timeout_ns) * 1e-9));
  }
}

/// Returns an option that is on.
pmix_info_t option(const char* key) {
  pmix_info_t info{};
  std::strncpy(info.key, key, sizeof info.key - 1);
  info.value.type = PMIX_BOOL;
  info.value.data.flag = true;
  return info;
}

/// Other users' keys begin with other words.
std::string own_key(const std::string& key) { return "tsprun-" + key; }

}  // namespace

std::string pmix_trouble() {
  try {
    library();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

PmixStore::PmixStore(std::uint64_t timeout_ns) : timeout_ns_(timeout_ns) {
  struct Beginning {
    std::promise<pmix_status_t> status;
    pmix_proc_t self{};
  };
  const PmixLibrary& pmix = library();
  const auto beginning = std::make_shared<Beginning>();
  std::future<pmix_status_t> begun = beginning->status.get_future();
  {
    // A thread, because it waits without limit for a manager that is stopped. PMIx's own threads begin with its signals blocked.
    const SignalsBlocked blocked;
    std::thread([&pmix, beginning] { beginning->status.set_value(pmix.init(&beginning->self, nullptr, 0)); }).detach();
  }
  if (begun.wait_for(std::chrono::nanoseconds(timeout_ns)) != std::future_status::ready) {
    throw Error(Cause::stalled, fmt::format("PMIx_Init: the process manager didn't answer within {:g} s (TSP_TIMEOUT)",
                                            static_cast<double>(timeout_ns) * 1e-9));
  }
  if (const pmix_status_t status = begun.get(); status != PMIX_SUCCESS) {
    throw Error(Cause::refused,
                fmt::format("PMIx_Init: {}: ranks on several nodes meet by the process manager that started them; "
                            "does it still run, and is this process its child?",
                            pmix.error_string(status)));
  }
  job_ = beginning->self.nspace;
}

PmixStore::~PmixStore() { library().finalize(nullptr, 0); }

void PmixStore::set(const std::string& key, std::span<const std::byte> value) {
  std::vector<std::byte> copy(value.begin(), value.end());
  pmix_value_t bytes{};
  bytes.type = PMIX_BYTE_OBJECT;
  bytes.data.bo = {reinterpret_cast<char*>(copy.data()), copy.size()};
  check(library().put(PMIX_GLOBAL, own_key(key).c_str(), &bytes), "PMIx_Put");
}

std::optional<std::vector<std::byte>> PmixStore::get(const std::string& key, std::chrono::milliseconds /*at_most*/) {
  pmix_proc_t anyone{};
  job_.copy(anyone.nspace, sizeof anyone.nspace - 1);
  anyone.rank = PMIX_RANK_UNDEF;
  const auto answer = std::make_shared<PmixAnswer>();
  answer->key = own_key(key);
  answer->option = option(PMIX_IMMEDIATE);
  await("PMIx_Get", timeout_ns_, answer, [&](void* owner) {
    return library().get_nb(&anyone, answer->key.c_str(), &answer->option, 1, &PmixAnswer::take, owner);
  });
  return answer->status == PMIX_SUCCESS ? std::optional(answer->value) : std::nullopt;
}

void PmixStore::fence() {
  check(library().commit(), "PMIx_Commit");
  const auto answer = std::make_shared<PmixAnswer>();
  answer->option = option(PMIX_COLLECT_DATA);
  await("PMIx_Fence", timeout_ns_, answer,
        [&](void* owner) { return library().fence_nb(nullptr, 0, &answer->option, 1, &PmixAnswer::take_status, owner); });
  check(answer->status, "PMIx_Fence");
}

}  // namespace tsprun::detail::bootstrap
