// Takes, beats and gives back the lease; judges by lock, process and beat whether its last holder is dead.
#include "layers/checkpoints/checkpoint_lease.h"

#include "layers/checkpoints/checkpoint.h"
#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"
#include "transport/hexadecimal.h"
#include "transport/machine.h"
#include "transport/signals_blocked.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <memory>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::size_t kRecordBytes = 512;
constexpr std::string_view kVersionField = "tsprun lease";
constexpr std::size_t kMostHost = 64;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &parts));
  return text.data();
}

/// Returns the record as one line of kRecordBytes bytes.
std::string text_of(const LeaseRecord& record) {
  nlohmann::ordered_json object;
  object[std::string(kVersionField)] = 1;
  object["token"] = record.token;
  object["run"] = record.run;
  object["host"] = record.host;
  object["boot"] = record.boot;
  object["pid"] = record.pid;
  object["since"] = record.since;
  object["locked"] = record.locked ? 1 : 0;
  object["beat"] = record.beat;
  std::string text = object.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  text.resize(kRecordBytes - 1, ' ');
  return text + "\n";
}

std::optional<LeaseRecord> parse_record(const std::string& text) {
  try {
    const nlohmann::json object = parse_json(text, "lease");
    LeaseRecord record;
    if (object.at(std::string(kVersionField)) != 1) return std::nullopt;
    record.token = shown(object.at("token").get<std::string>());
    record.run = shown(object.at("run").get<std::string>());
    record.host = shown(object.at("host").get<std::string>());
    record.boot = object.at("boot").get<std::string>();
    record.pid = object.at("pid").get<std::int64_t>();
    record.since = shown(object.at("since").get<std::string>());
    record.locked = object.at("locked") == 1;
    record.beat = object.at("beat").get<std::uint64_t>();
    return record;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// Returns the contents of the file, at most kRecordBytes bytes.
std::string read_record(int file) {
  std::string text(kRecordBytes, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string describe(const std::optional<LeaseRecord>& record) {
  if (!record) return "by a run that hasn't said who it is";
  return fmt::format("by run {:.8}, process {} on {}, since {}", record->run, record->pid, record->host, record->since);
}

/// Agreement of a thread that starts and the one that waits for it with a deadline. Once the waiting one has given up, the thread
/// must touch nothing else, as it may begin at any later time.
class ThreadStart {
 public:
  /// Tells, from the thread, that it has begun. Returns false if nobody waits for it any more.
  bool begin() {
    const std::lock_guard<std::mutex> guard(mutex_);
    begun_ = !given_up_;
    changed_.notify_all();
    return begun_;
  }
  /// Returns whether the thread begins within this time.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> guard(mutex_);
    given_up_ = !changed_.wait_for(guard, time, [this] { return begun_; });
    return !given_up_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool given_up_ = false;
};

constexpr std::string_view kWhatToDo = "name another folder, or wait for it to end";

}  // namespace

std::string new_run_identity() {
  std::array<std::byte, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw system_error(Cause::refused, "an identity for the run: getrandom", errno);
  }
  return hexadecimal(bytes);
}

std::optional<LeaseRecord> read_lease(const fs::path& dir) {
  // The file is opened anew: only then do shared file systems look for what others have written.
  const posix::UniqueFd file(::open((dir / kLeaseName).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  return file ? parse_record(read_record(file.get())) : std::nullopt;
}

void check_lease(const fs::path& dir, const std::string& token) {
  // A record that is just being written may be read in half.
  std::optional<LeaseRecord> record;
  for (int look = 0; look < 5 && !record; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    record = read_lease(dir);
  }
  if (record && record->token == token) return;
  throw Error(Cause::refused,
              fmt::format("{}: this run's lease of the folder is lost: {}; nothing is written there any more", dir.string(),
                          record ? fmt::format("it is held {}, which took this run for dead", describe(record))
                                 : fmt::format("{} is gone, or isn't what was written", kLeaseName)));
}

CheckpointLease::CheckpointLease(const fs::path& dir, const std::string& run,
                                 const std::function<void(const std::string&)>& on_wait, const LeaseTimes& times)
    : dir_(dir),
      path_(dir / kLeaseName),
      times_(times),
      record_{.token = new_run_identity(),
              .run = run,
              .host = shown(machine::host_name().substr(0, kMostHost)),
              .boot = machine::boot_identity(),
              .pid = ::getpid(),
              .since = utc_now(),
              .locked = false,
              .beat = 0} {
  std::error_code error;
  made_folder_ = !fs::exists(dir, error);
  make_folders(dir);
  open_and_lock();
  take(on_wait);
  begin_to_beat();
}

/// Starts the thread and waits until it has begun: a thread that starts takes locks (the loader's, a sanitizer's), and a process
/// forked meanwhile would never see them released.
void CheckpointLease::begin_to_beat() {
  const auto start = std::make_shared<ThreadStart>();
  int failed = 0;
  try {
    const SignalsBlocked blocked;
    beating_ = std::thread([this, start, text = text_of(record_)] {
      if (start->begin()) beat_on(text);
    });
  } catch (const std::system_error& reason) {
    failed = reason.code().value();
  }
  if (failed == 0 && start->wait_for(times_.begin)) return;
  give_up();
  if (failed != 0) throw system_error(Cause::refused, fmt::format("{}: a thread to keep the lease", dir_.string()), failed);
  beating_.detach();
  throw Error(Cause::stalled,
              fmt::format("{}: waited {:g} s for the thread that keeps the lease to begin: this machine gives the "
                          "process no time, or a debugger holds the thread",
                          dir_.string(), static_cast<double>(times_.begin.count()) / 1000));
}

CheckpointLease::~CheckpointLease() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (beating_.joinable()) beating_.join();
  give_up();
}

/// Deletes the file, if it is still this lease's, and the folder, if the constructor made it and nothing else lies in it.
void CheckpointLease::give_up() {
  const std::optional<LeaseRecord> last = parse_record(read_record(file_.get()));
  if (last && last->token == record_.token && is_the_file()) ::unlink(path_.c_str());
  file_.reset();
  if (made_folder_) ::rmdir(dir_.c_str());
}

/// Returns whether the name still refers to the open file, so that nobody has given the lease back in between.
bool CheckpointLease::is_the_file() const {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file_.get(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

void CheckpointLease::open_and_lock() {
  constexpr mode_t kMode = 0644;
  const auto until = steady_clock::now() + times_.dying;
  for (;;) {
    int opened = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kMode);
    made_file_ = opened >= 0;
    if (!made_file_ && errno == EEXIST) {
      opened = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (opened < 0 && errno == ENOENT) continue;  // given back between the two
    }
    if (opened < 0)
      throw system_error(Cause::refused, fmt::format("{}: can't be opened to lease the folder", path_.string()), errno);
    file_ = posix::UniqueFd(opened);
    record_.locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
    const bool taken = !record_.locked && errno == EWOULDBLOCK;
    if (!taken && is_the_file()) return;
    if (taken && steady_clock::now() >= until) {
      const std::optional<LeaseRecord> holder = parse_record(read_record(file_.get()));
      // A lock may outlive the machine that holds it; a beat can't.
      if (holder && holder->boot != record_.boot) return;
      throw Error(Cause::refused, fmt::format("{}: the folder is leased {}; {}", dir_.string(), describe(holder), kWhatToDo));
    }
    if (taken) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Writes this run's record once the last holder is known to be dead. Throws Error(refused) if it lives.
void CheckpointLease::take(const std::function<void(const std::string&)>& on_wait) {
  const std::string found = read_record(file_.get());
  const std::optional<LeaseRecord> holder = parse_record(found);
  const bool fresh = made_file_ && found.empty();
  const bool lock_tells = holder && holder->locked && !record_.boot.empty() && holder->boot == record_.boot;
  if (fresh || (record_.locked && lock_tells)) return write();

  if (on_wait) {
    on_wait(fmt::format("{}: leased {}; watching it for {:g} s, for a lock doesn't tell whether it lives", dir_.string(),
                        describe(holder), static_cast<double>(times_.silence.count()) / 1000));
  }
  const auto refuse_living = [&](const std::string& now) {
    throw Error(Cause::refused, fmt::format("{}: the folder is leased {}, which gives signs of life; {}", dir_.string(),
                                            describe(parse_record(now)), kWhatToDo));
  };
  for (const auto until = steady_clock::now() + times_.silence; steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::min(times_.beat / 4, times_.silence));
    // read_lease() opens the file anew. A lease that was given back in between has no file.
    const std::optional<LeaseRecord> now = read_lease(dir_);
    if (now && now != holder) refuse_living(text_of(*now));
  }
  write();
  std::this_thread::sleep_for(times_.settle);
  const std::optional<LeaseRecord> now = read_lease(dir_);
  if (!now || now->token != record_.token) {
    throw Error(Cause::refused, fmt::format("{}: the folder is leased {}, which came at the same time; {}", dir_.string(),
                                            describe(now), kWhatToDo));
  }
}

void CheckpointLease::write() {
  const std::string text = text_of(record_);
  const ssize_t put = ::pwrite(file_.get(), text.data(), text.size(), 0);
  const bool whole = put == static_cast<ssize_t>(text.size()) && ::fdatasync(file_.get()) == 0;
  if (!whole) {
    const int reason = errno;
    if (made_file_) ::unlink(path_.c_str());
    throw system_error(Cause::refused, fmt::format("{}: can't be written", path_.string()), reason);
  }
}

/// Runs in the thread: changes the beat until the lease ends or another run takes it. It allocates no memory, because ranks are
/// forked while it runs.
void CheckpointLease::beat_on(const std::string& text) {
  std::array<char, kRecordBytes> mine{};
  std::array<char, kRecordBytes> there{};
  text.copy(mine.data(), mine.size());
  constexpr std::string_view kBeat = "\"beat\":";
  char* const digits = mine.data() + text.rfind(kBeat) + kBeat.size();
  const std::size_t token_end = text.find(record_.token) + record_.token.size();
  for (std::uint64_t beat = 1;; ++beat) {
    {
      std::unique_lock<std::mutex> guard(mutex_);
      if (changed_.wait_for(guard, times_.beat, [&] { return over_; })) return;
    }
    const ssize_t got = ::pread(file_.get(), there.data(), there.size(), 0);
    if (got < 0) continue;  // the file system is away for a while
    if (got != static_cast<ssize_t>(there.size()) || std::memcmp(there.data(), mine.data(), token_end) != 0) return;
    char* const end = fmt::format_to(digits, "{}}}", beat);
    std::fill(end, mine.data() + mine.size() - 1, ' ');
    // If this fails, the next beat shows it.
    [[maybe_unused]] const ssize_t put = ::pwrite(file_.get(), mine.data(), mine.size(), 0);
    ::fdatasync(file_.get());
  }
}

}  // namespace tsprun::detail
