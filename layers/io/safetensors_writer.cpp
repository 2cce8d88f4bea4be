// Plans where tensors lie in a file, and writes blocks of them with conversion.
#include "layers/io/safetensors_writer.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/safetensors_pieces.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tsprun::detail::safetensors {

namespace {

constexpr std::size_t kTurnBytes = std::size_t{256} << 10;
constexpr std::size_t kAlignment = 8;
constexpr int kLooks = 50;                                          // at an unfinished file that others may be discarding, too
constexpr std::uint64_t kAllocatedBytes = std::uint64_t{16} << 20;  // between two ticks

std::filesystem::path partial_name(const std::filesystem::path& path) {
  std::filesystem::path partial = path;
  partial += ".partial";
  return partial;
}

posix::UniqueFd open_partial(const std::filesystem::path& partial, int flags) {
  constexpr mode_t kMode = 0644;
  posix::UniqueFd file(::open(partial.c_str(), O_RDWR | O_CLOEXEC | flags, kMode));
  if (!file) throw system_error(Cause::refused, fmt::format("{}: can't be opened to write", partial.string()), errno);
  return file;
}

/// Returns the path by which this process reaches its own open file.
std::string own_link(const posix::UniqueFd& file) { return fmt::format("/proc/self/fd/{}", file.get()); }

/// Returns false if another process has the lock. Where a file system has no locks, everybody gets it. What is locked is a byte
/// far behind the data, which others may then write even where locks are mandatory, as on SMB shares.
bool try_lock(const posix::UniqueFd& file) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = off_t{1} << 62;
  lock.l_len = 1;
  return ::fcntl(file.get(), F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
}

/// Returns whether `file` still has the name `path`.
bool has_name(const posix::UniqueFd& file, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// Opens the unfinished file, empty and locked against other creators.
posix::UniqueFd create_partial(const std::filesystem::path& partial) {
  posix::UniqueFd file = open_partial(partial, O_CREAT);
  bool locked = try_lock(file);
  for (int again = 0; locked && !has_name(file, partial) && again < kLooks; ++again) {  // others have just discarded it
    file = open_partial(partial, O_CREAT);
    locked = try_lock(file);
  }
  if (!locked) throw Error(Cause::refused, fmt::format("{}: another process writes it; name another file", partial.string()));
  if (::ftruncate(file.get(), 0) != 0)
    throw system_error(Cause::refused, fmt::format("{}: emptying it", partial.string()), errno);
  return file;
}

}  // namespace

bool discard_unfinished(const std::filesystem::path& path) {
  const std::filesystem::path partial = partial_name(path);
  // Other nodes of a job may look at the same moment.
  for (int looks = 0; looks < kLooks; ++looks) {
    const posix::UniqueFd file(::open(partial.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) return true;
    if (try_lock(file)) {
      if (has_name(file, partial)) ::unlink(partial.c_str());
      return true;
    }
    posix::sleep_ns(20'000'000);
  }
  return false;
}

Plan::Plan(const std::vector<PlannedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that every tensor begins at a multiple of its element's size.
  std::vector<const PlannedTensor*> order;
  order.reserve(tensors.size());
  for (const PlannedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const PlannedTensor* a, const PlannedTensor* b) {
    return tsprun::size_of(a->dtype) > tsprun::size_of(b->dtype);
  });

  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  if (!metadata.empty()) object["__metadata__"] = metadata;
  std::uint64_t end = 0;
  for (const PlannedTensor* tensor : order) {
    TensorInfo info{tensor->name, stored_type_of(tensor->dtype), tensor->shape, end, tsprun::size_of(tensor->dtype)};
    bool overflow = false;
    for (const std::size_t size : tensor->shape) overflow = __builtin_mul_overflow(info.bytes, size, &info.bytes) || overflow;
    overflow = __builtin_add_overflow(end, info.bytes, &end) || overflow;
    if (overflow || end > (std::uint64_t{1} << 62)) {
      throw Error(Cause::refused, fmt::format("tensor \"{}\" {} is too large for a file", tensor->name, describe(tensor->shape)));
    }
    object[tensor->name] = {{"dtype", detail::name(info.type)}, {"shape", info.shape}, {"data_offsets", {info.offset, end}}};
    if (!tensors_.emplace(tensor->name, std::move(info)).second) {
      throw Error(Cause::refused, fmt::format("tensor \"{}\" is to be written twice", tensor->name));
    }
  }

  std::string json = object.dump();
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  const std::uint64_t json_bytes = json.size();
  head_.assign(reinterpret_cast<const char*>(&json_bytes), sizeof(json_bytes));
  head_ += json;
  for (auto& [name, info] : tensors_) info.offset += head_.size();
  file_bytes_ = head_.size() + end;
}

const TensorInfo* Plan::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

posix::UniqueFd unnamed_file(const std::filesystem::path& path) {
  posix::UniqueFd file = file::open_unnamed(path.parent_path());
  if (file && ::access(own_link(file).c_str(), F_OK) != 0) file.reset();  // without /proc it could never get a name
  return file;
}

Writer::Writer(std::filesystem::path path, const Plan& plan, posix::UniqueFd file, bool creator, Named named)
    : path_(std::move(path)),
      partial_(named == Named::yes ? partial_name(path_) : path_),
      plan_(&plan),
      file_(std::move(file)),
      creator_(creator),
      named_(named) {}

Writer Writer::create(std::filesystem::path path, const Plan& plan, const std::function<void()>& tick, posix::UniqueFd unnamed) {
  const Named named = unnamed ? Named::no : Named::yes;
  posix::UniqueFd file = unnamed ? std::move(unnamed) : create_partial(partial_name(path));
  Writer writer(std::move(path), plan, std::move(file), true, named);
  // Allocating the whole space now lets a full disk fail here, before any work is done. posix_fallocate returns its error instead
  // of setting errno. Where the file system can't allocate, it writes to each block, which takes as long as writing the file.
  for (std::uint64_t first = 0; first < plan.file_bytes(); first += kAllocatedBytes) {
    const std::uint64_t bytes = std::min(kAllocatedBytes, plan.file_bytes() - first);
    int error = EINTR;
    while (error == EINTR) error = ::posix_fallocate(writer.file_.get(), static_cast<off_t>(first), static_cast<off_t>(bytes));
    if (error != 0)
      throw system_error(Cause::refused, fmt::format("{}: {} bytes", writer.partial_.string(), plan.file_bytes()), error);
    if (tick) tick();
  }
  file::write(writer.file_, writer.partial_, 0, std::as_bytes(std::span(plan.head())));
  return writer;
}

Writer Writer::join(std::filesystem::path path, const Plan& plan, posix::UniqueFd unnamed) {
  const Named named = unnamed ? Named::no : Named::yes;
  posix::UniqueFd file = unnamed ? std::move(unnamed) : open_partial(partial_name(path), 0);
  Writer writer(std::move(path), plan, std::move(file), false, named);
  const std::uint64_t bytes = file::size(writer.file_, writer.partial_);
  if (bytes != plan.file_bytes()) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; expected {}: it was created by another plan", writer.partial_.string(),
                                            bytes, plan.file_bytes()));
  }
  return writer;
}

Writer::~Writer() {
  if (named_ == Named::yes && creator_ && !published_ && file_ && has_name(file_, partial_)) ::unlink(partial_.c_str());
}

const TensorInfo& Writer::planned(std::string_view name) const {
  const TensorInfo* tensor = plan_->find(name);
  if (tensor == nullptr) throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" isn't planned", path_.string(), name));
  return *tensor;
}

void Writer::write(std::string_view name, ConstBuffer from) { write(name, whole(planned(name)), from); }

void Writer::write(std::string_view name, const Rectangle& block, ConstBuffer from) {
  const TensorInfo& tensor = planned(name);
  check_block(tensor, block, from.count, path_.string());
  const StoredType source = stored_type_of(from.dtype);
  if (!is_readable(source)) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": {} can't be written as {}", path_.string(), name,
                                            tsprun::name(from.dtype), detail::name(tensor.type)));
  }
  if (from.count == 0) return;

  if (source == tensor.type) {
    for_pieces(tensor, block, from.count, [&](std::uint64_t offset, std::size_t first, std::size_t count) {
      file::write(file_, partial_, offset, from.slice(first, count).as_bytes());
    });
    return;
  }
  const DType target = tensor.type == StoredType::F64 ? DType::f64 : tensor.type == StoredType::F32 ? DType::f32 : DType::bf16;
  std::vector<std::byte> scratch(std::min(from.count * tsprun::size_of(target), kTurnBytes));
  const std::size_t most = scratch.size() / tsprun::size_of(target);
  for_pieces(tensor, block, most, [&](std::uint64_t offset, std::size_t first, std::size_t count) {
    convert_from_stored(source, from.slice(first, count).data, target, scratch.data(), count);
    file::write(file_, partial_, offset, std::span(scratch).first(count * tsprun::size_of(target)));
  });
}

void Writer::sync() { file::sync(file_, partial_); }

void Writer::publish() {
  sync();
  if (named_ == Named::no) give_name();
  else if (!has_name(file_, partial_))
    throw Error(Cause::refused, fmt::format("{}: another process has replaced it; name another file", partial_.string()));
  if (partial_ != path_ && ::rename(partial_.c_str(), path_.c_str()) != 0) {
    throw system_error(Cause::refused, fmt::format("{}: renaming to {}", partial_.string(), path_.string()), errno);
  }
  published_ = true;
  file::sync_folder(path_.parent_path());
}

/// Gives a file without a name its own or, if there is a file of that name, the one from which it is renamed.
void Writer::give_name() {
  const auto link_as = [&](const std::filesystem::path& name) {
    if (::linkat(AT_FDCWD, own_link(file_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
    if (errno == EEXIST) return false;
    throw system_error(Cause::refused, fmt::format("{}: giving the file its name", name.string()), errno);
  };
  if (link_as(path_)) return;
  partial_ = partial_name(path_);
  if (!discard_unfinished(path_) || !link_as(partial_))
    throw Error(Cause::refused, fmt::format("{}: another process writes it; name another file", partial_.string()));
}

}  // namespace tsprun::detail::safetensors
