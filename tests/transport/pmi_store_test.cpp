// The store of a process manager that speaks PMI-1, against a manager that is written here from the protocol's description.

#include "transport/bootstrap/pmi_store.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::bootstrap::pmi_store_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

/// A manager of so many processes. What is put can be got only after the next barrier, as between hydra's proxies.
class Manager {
 public:
  explicit Manager(std::size_t processes) {
    for (std::size_t i = 0; i < processes; ++i) {
      std::array<int, 2> ends{};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
      own_.push_back(ends[0]);
      theirs_.push_back(ends[1]);
    }
    input_.resize(processes);
    thread_ = std::thread([this] { serve(); });
  }
  ~Manager() {
    for (const int fd : theirs_) ::close(fd);
    thread_.join();
    for (const int fd : own_) ::close(fd);
  }
  int descriptor(std::size_t process) const { return theirs_[process]; }
  /// Processes that have said goodbye. Read it when they have.
  int finalized() const { return finalized_; }
  std::string longest_value = "1024";
  std::string refuse;  ///< a command that fails

 private:
  void serve() {
    std::size_t open = own_.size();
    while (open > 0) {
      std::vector<pollfd> watched;
      for (const int fd : own_) watched.push_back({fd, POLLIN, 0});
      ::poll(watched.data(), watched.size(), 1000);
      for (std::size_t i = 0; i < watched.size(); ++i) {
        if (watched[i].revents == 0) continue;
        char bytes[1000];
        const ssize_t got = ::read(own_[i], bytes, sizeof bytes);
        if (got <= 0) {
          --open;
          ::close(own_[i]);
          own_[i] = -1;
          continue;
        }
        input_[i].append(bytes, static_cast<std::size_t>(got));
        for (std::size_t end = input_[i].find('\n'); end != std::string::npos; end = input_[i].find('\n')) {
          obey(i, input_[i].substr(0, end));
          input_[i].erase(0, end + 1);
        }
      }
    }
  }

  void say(std::size_t process, const std::string& line) {
    // In two pieces, as a stream may deliver it.
    const std::string out = line + "\n";
    [[maybe_unused]] ssize_t done = ::write(own_[process], out.data(), out.size() / 2);
    done = ::write(own_[process], out.data() + out.size() / 2, out.size() - out.size() / 2);
  }

  void obey(std::size_t process, const std::string& line) {
    std::map<std::string, std::string> words;
    std::istringstream in(line);
    for (std::string word; in >> word;) words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    const std::string& command = words["cmd"];
    const std::string rc = command == refuse ? "rc=-1" : "rc=0";
    if (command == "init") say(process, "cmd=response_to_init pmi_version=1 pmi_subversion=1 " + rc);
    if (command == "get_maxes") say(process, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=" + longest_value);
    if (command == "get_my_kvsname") say(process, "cmd=my_kvsname kvsname=kvs_77_0");
    if (command == "put") {
      EXPECT_EQ(words["kvsname"], "kvs_77_0");
      put_[words["key"]] = words["value"];
      say(process, "cmd=put_result " + rc + " msg=success");
    }
    if (command == "get") {
      const auto found = values_.find(words["key"]);
      say(process, found == values_.end() ? "cmd=get_result rc=-1 msg=key_not_found value=unknown"
                                          : "cmd=get_result rc=0 msg=success value=" + found->second);
    }
    if (command == "barrier_in" && ++in_barrier_ == own_.size()) {
      in_barrier_ = 0;
      values_ = put_;
      for (std::size_t i = 0; i < own_.size(); ++i) say(i, "cmd=barrier_out rc=0");
    }
    if (command == "finalize") {
      ++finalized_;
      say(process, "cmd=finalize_ack rc=0");
    }
  }

  std::vector<int> own_;
  std::vector<int> theirs_;
  std::vector<std::string> input_;
  std::map<std::string, std::string> put_;
  std::map<std::string, std::string> values_;
  std::size_t in_barrier_ = 0;
  int finalized_ = 0;
  std::thread thread_;
};

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int each : values) result.push_back(static_cast<std::byte>(each));
  return result;
}

TEST(PmiStore, GivesEachProcessWhatOthersSetBeforeTheFence) {
  Manager manager(3);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      PmiStore store(manager.descriptor(rank), 20 * kSecond);
      store.set("place/" + std::to_string(rank), bytes({0, 10, 32, 61, 255, static_cast<int>(rank)}));
      store.fence();
      for (std::size_t other = 0; other < 3; ++other) {
        const auto value = store.get("place/" + std::to_string(other), std::chrono::seconds(1));
        ASSERT_TRUE(value);
        EXPECT_EQ(*value, bytes({0, 10, 32, 61, 255, static_cast<int>(other)}));
      }
      EXPECT_FALSE(store.get("nobody/set/it", std::chrono::seconds(1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(manager.finalized(), 3);
}

TEST(PmiStore, AFenceToWhichSomebodyDoesNotComeEndsAtTheDeadline) {
  Manager manager(2);
  PmiStore store(manager.descriptor(0), 2 * kSecond);
  try {
    store.fence();
    FAIL() << "the other never came";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::stalled);
    EXPECT_NE(std::string(error.what()).find("have all ranks begun to join?"), std::string::npos) << error.what();
  }
}

TEST(PmiStore, RefusesWhatTheManagerWouldCut) {
  Manager manager(1);
  manager.longest_value = "16";
  PmiStore store(manager.descriptor(0), 20 * kSecond);
  store.set("fits", std::vector<std::byte>(7));
  EXPECT_THROW(store.set("does/not", std::vector<std::byte>(8)), Error);
}

TEST(PmiStore, RefusesAManagerThatRefuses) {
  Manager manager(1);
  manager.refuse = "init";
  EXPECT_THROW(PmiStore(manager.descriptor(0), 20 * kSecond), Error);
}

TEST(PmiStore, RefusesWhatIsNoManager) {
  EXPECT_THROW(PmiStore(-1, kSecond), Error);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const std::string garbage = "HTTP/1.1 400 Bad Request\n";
  ASSERT_EQ(::write(ends[0], garbage.data(), garbage.size()), static_cast<ssize_t>(garbage.size()));
  EXPECT_THROW(PmiStore(ends[1], kSecond), Error);
  ::close(ends[0]);
  EXPECT_THROW(PmiStore(ends[1], kSecond), Error);
  ::close(ends[1]);
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::pmi_store_test
