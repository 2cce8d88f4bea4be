// Spawns processes with a marked environment, and finds the marked ones in /proc.
#include "tests/support/process.h"

#include "tests/support/patience.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace tsprun::detail::test {

namespace {

/// Variables by which starters tell ranks their place: a test's child has only those that the test gives it. The library of
/// matrix products passes, so that tests that start jobs can run under each.
bool is_starters(const std::string& entry) {
  if (entry.starts_with("TSP_GEMM=")) return false;
  for (const char* prefix :
       {"TSP_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "PET_", "SLURM_"}) {
    if (entry.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

std::vector<std::string> make_environment(const ProcessOptions& options, const std::string& mark) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!is_starters(*entry) && !options.environment.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : options.environment) entries.push_back(std::string(name).append("=").append(value));
  // Else `tsprun run` says that it sets it.
  if (std::getenv("OMP_NUM_THREADS") == nullptr && !options.environment.contains("OMP_NUM_THREADS"))
    entries.emplace_back("OMP_NUM_THREADS=1");
  entries.push_back(mark);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Pipe {
  posix::UniqueFd reader;
  posix::UniqueFd writer;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    reader = posix::UniqueFd(ends[0]);
    writer = posix::UniqueFd(ends[1]);
  }
};

/// An unnamed file that holds the text.
posix::UniqueFd file_with(const std::string& text) {
  posix::UniqueFd file(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("no room in /tmp");
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

cpu_set_t some_cores(int count) {
  cpu_set_t all;
  ::sched_getaffinity(0, sizeof all, &all);
  cpu_set_t some;
  CPU_ZERO(&some);
  for (std::size_t core = 0; core < CPU_SETSIZE && count > 0; ++core) {
    if (CPU_ISSET(core, &all)) {
      CPU_SET(core, &some);
      --count;
    }
  }
  return some;
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Processes whose initial environment holds both entries (an empty one counts as held).
std::vector<pid_t> find_processes(const std::string& entry, const std::string& other) {
  auto holds = [](const std::string& block, const std::string& wanted) {
    return wanted.empty() || ('\0' + block).find('\0' + wanted + '\0') != std::string::npos;
  };
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& directory : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = directory.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string block = slurp(directory.path() / "environ");
    if (holds(block, entry) && holds(block, other)) found.push_back(std::stoi(name));
  }
  return found;
}

/// Whether a process bears a mark of this one's children.
bool is_ours(const std::string& pid) {
  return ('\0' + slurp("/proc/" + pid + "/environ")).find(fmt::format("{}TEST_MARK={}.", '\0', ::getpid())) != std::string::npos;
}

/// Abstract sockets that have our names: name and inode.
std::map<std::string, std::string> named_sockets() {
  std::map<std::string, std::string> found;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string word;
    std::string inode;
    for (int i = 0; i < 7 && words >> word; ++i) inode = word;
    if (std::getline(words >> std::ws, word) && word.starts_with("@tsp")) found[word] = inode;
  }
  return found;
}

/// Whether a living process that no test of this program has started holds the socket.
bool is_others_socket(const std::string& inode) {
  const std::string wanted = "socket:[" + inode + "]";
  bool held = false;
  std::error_code ignored;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    // The process may end meanwhile, which isn't an error.
    std::filesystem::directory_iterator fd(process.path() / "fd", ignored);
    for (; !ignored && fd != std::filesystem::directory_iterator(); fd.increment(ignored)) {
      std::error_code gone;
      if (std::filesystem::read_symlink(fd->path(), gone) != wanted) continue;
      if (is_ours(pid)) return false;
      held = true;
    }
    ignored.clear();
  }
  return held;
}

/// Whether a living process that no test of this program has started made the object: "/dev/shm/tsp-PID-…".
bool is_others_object(const std::string& path) {
  const std::string start = "/dev/shm/tsp-";
  const std::string pid = path.substr(start.size(), path.find('-', start.size()) - start.size());
  return std::filesystem::exists("/proc/" + pid) && !is_ours(pid);
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  static std::atomic<int> counter{0};
  mark_ = fmt::format("TEST_MARK={}.{}", ::getpid(), ++counter);
  std::vector<std::string> words = arguments;
  std::vector<std::string> entries = make_environment(options, mark_);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(entries);
  const posix::UniqueFd input = file_with(options.input);
  const cpu_set_t cores = some_cores(options.cores);
  Pipe out;
  Pipe err;
  watch_ = PatientWatch();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(input.get(), STDIN_FILENO);
    ::dup2(out.writer.get(), STDOUT_FILENO);
    ::dup2(err.writer.get(), STDERR_FILENO);
    if (options.cores > 0) ::sched_setaffinity(0, sizeof cores, &cores);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  if (pid_ < 0) throw std::runtime_error("fork");
  reader_out_ = std::thread([this, fd = out.reader.release()] { read_into(fd, out_); });
  reader_err_ = std::thread([this, fd = err.reader.release()] { read_into(fd, err_); });
}

Process::~Process() {
  if (!end_.ended) ::kill(pid_, SIGKILL);
  for (pid_t pid : marked()) ::kill(pid, SIGKILL);
  if (!end_.ended) ::waitpid(pid_, nullptr, 0);
  if (reader_out_.joinable()) reader_out_.join();
  if (reader_err_.joinable()) reader_err_.join();
}

void Process::read_into(int fd, std::string& text) {
  const posix::UniqueFd owned(fd);
  std::vector<char> buffer(65536);
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    const std::lock_guard lock(mutex_);
    if (got <= 0) {
      ++closed_;
      return;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

bool Process::output_is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_ == 2;
}

void Process::signal(int number) const { ::kill(pid_, number); }

End Process::wait(double seconds) {
  if (end_.ended) return end_;
  int status = 0;
  const bool ended = until(seconds, [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return end_;
  end_.ended = true;
  end_.at_ns = posix::now_ns();
  end_.seconds = watch_.seconds();
  end_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // Descendants that are about to end may still hold the pipes.
  until(1.0, [this] { return output_is_closed(); });
  return end_;
}

bool Process::wait_for_output(const std::string& text, int times, double seconds) {
  auto seen = [&] {
    const std::string all = out();
    int count = 0;
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + text.size())) ++count;
    return count >= times;
  };
  return until(seconds, [&] { return seen() || ::kill(pid_, 0) != 0; }) && seen();
}

std::string Process::out() {
  const std::lock_guard lock(mutex_);
  return out_;
}

std::string Process::err() {
  const std::lock_guard lock(mutex_);
  return err_;
}

std::vector<pid_t> Process::marked() const { return find_processes(mark_, ""); }

bool Process::wait_until_nothing_is_left(double seconds) const {
  return until(seconds, [&] { return marked().empty(); });
}

std::vector<pid_t> Process::of_rank(int rank) const { return find_processes(mark_, fmt::format("RANK={}", rank)); }

std::string Finished::describe() const {
  return fmt::format("{} after {:.2f} s\n--- stdout\n{}\n--- stderr\n{}\n---\n",
                     end.ended ? fmt::format("ended with {}", end.code) : "didn't end", end.seconds, out.substr(0, 4000),
                     err.substr(0, 8000));
}

Finished run_program(const std::vector<std::string>& arguments, const ProcessOptions& options, double seconds) {
  const std::set<std::string> before = shared_names();
  Process process(arguments, options);
  Finished finished;
  finished.end = process.wait(seconds);
  EXPECT_TRUE(finished.end.ended) << arguments[0] << " didn't end within " << seconds << " s";
  // What tsprun leaves it leaves at its end: there is nothing to wait for but the scheduler.
  EXPECT_TRUE(process.wait_until_nothing_is_left(0.5)) << process.marked().size() << " processes are left";
  finished.out = process.out();
  finished.err = process.err();
  EXPECT_EQ(names_left(before), std::set<std::string>{});
  return finished;
}

Finished run_tsprun(const std::vector<std::string>& arguments, const ProcessOptions& options, double seconds) {
  std::vector<std::string> words = {tsprun_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  // In tests a byte that isn't as forecast is always a failure.
  const auto given = [&](const char* word) { return std::ranges::find(arguments, word) != arguments.end(); };
  const bool computes = given("train") || given("eval") || given("block");
  if (computes && !given("--") && !given("--audit")) words.insert(words.end(), {"--audit", "strict"});
  return run_program(words, options, seconds);
}

std::string tsprun_path() { return TSPRUN_PATH; }
std::string program_path(const std::string& name) { return std::string(TSP_PROGRAMS_DIR) + "/" + name; }

std::vector<std::string> tsprun_actor(const std::vector<std::string>& options, const std::vector<std::string>& action) {
  std::vector<std::string> words = {tsprun_path()};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"run", "--", program_path("actor")});
  words.insert(words.end(), action.begin(), action.end());
  return words;
}

std::set<std::string> shared_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("tsp-")) names.insert(entry.path());
  }
  for (const auto& [name, inode] : named_sockets()) names.insert(name);
  return names;
}

std::set<std::string> names_left(const std::set<std::string>& before) {
  std::set<std::string> left;
  until(5, [&] {
    left.clear();
    std::ranges::set_difference(shared_names(), before, std::inserter(left, left.end()));
    if (left.empty()) return true;
    const std::map<std::string, std::string> sockets = named_sockets();
    std::erase_if(left, [&](const std::string& name) {
      if (!name.starts_with("@")) return is_others_object(name);
      const auto socket = sockets.find(name);
      return socket == sockets.end() || is_others_socket(socket->second);
    });
    return left.empty();
  });
  return left;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string path = (std::filesystem::temp_directory_path() / "tsp-test-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp " + path);
  path_ = path;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

nlohmann::json read_json(const std::string& path) {
  const std::string text = slurp(path);
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) {
    ADD_FAILURE() << path << " holds no JSON: " << text.substr(0, 1000);
    return nullptr;
  }
  return document;
}

}  // namespace tsprun::detail::test
