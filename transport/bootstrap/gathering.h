// Many values of the store at once: a client asks for the keys PREFIX0, PREFIX1, … of all ranks whose words it needs by one
// request, and the server answers by a few frames. So N ranks that tell each other something make N requests, not N².
//
//   gather     key: PREFIX   value: ┌ GatherCut, 12 B ┬ its id, 4 B ┐, then a bit for each number that is wanted, from the lowest
//   bit
//                                   of the first byte
//   gathered   key: PREFIX   value: ┌ id, 4 B ┐, then entries of ┌ number, 4 B ┬ bytes, 4 B ┬ value ┐, one after another
//
// The server sends at once what is there, and the rest when all of it is there; of both only as much as the client takes, so that
// no answer is ever kept as a whole. Another gather of the same client takes the place of the one before, so a client to which
// nothing comes asks again now and then for what it lacks, and so learns for whom it waits. By the id it knows answers to an
// earlier gather, of which some may still be on their way when its last value has come twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {

/// Part of each value that a client wants: `bytes` from `from` on, then everything from `rest` on. A rank that has something else
/// to say to each other one says all of it in one value, of which each reads its part. As it is made: all.
struct GatherCut {
  std::uint32_t from = 0;
  std::uint32_t bytes = 0;
  std::uint32_t rest = 0;

  /// Returns the part. Where the value is shorter, so is the part.
  std::vector<std::byte> of(std::span<const std::byte> value) const;
};
static_assert(sizeof(GatherCut) == 12);

/// Returns a request for numbers below kMostNumbers; `id` is the client's own for this gather.
std::vector<std::byte> gather_request(const GatherCut& cut, std::uint32_t id, std::span<const int> numbers);

/// Pack and unpack the numbers of a gather; unpacked they ascend. Precondition: they are below kMostNumbers.
std::vector<std::byte> pack_numbers(std::span<const int> numbers);
std::vector<int> unpack_numbers(std::span<const std::byte> bits);

/// Calls visit(number, value) for each entry of a frame `gathered`, if it answers the gather with this id. Returns false if the
/// frame isn't made of an id and entries.
bool each_entry(std::span<const std::byte> frame, std::uint32_t id,
                const std::function<void(int, std::span<const std::byte>)>& visit);

/// The server's gathers: what each client still waits for, and what of it can be sent.
class Gatherings {
 public:
  using Value = std::vector<std::byte>;
  using Values = std::map<std::string, Value, std::less<>>;

  /// `values`: all keys of the store, which stay where they are once they are set. Borrowed.
  explicit Gatherings(const Values& values) : values_(values) {}

  /// Begins a gather, in place of the client's last one. Returns why it is refused; empty: it isn't. What is there comes in
  /// next().
  std::string ask(int client, const std::string& prefix, std::span<const std::byte> request);
  /// Notes that a key was set. Returns the clients for which next() now has the rest of their answers.
  std::vector<int> set(std::string_view key, const Value& value);
  /// A frame `gathered`: its key, and its value.
  struct Frame {
    std::string prefix;
    Value value;
  };
  /// Takes the next frame of a client's answer; empty: there is none at present.
  std::optional<Frame> next(int client);
  /// Forgets a client.
  void forget(int client);

 private:
  /// What is known of one prefix. Once it has been asked for, every set under it is noted, so that no key is ever searched for.
  struct Table {
    std::vector<const Value*> values;      ///< by number; null: not set yet
    std::map<int, std::set<int>> waiting;  ///< by the number that they lack: clients
  };
  struct Wait {
    std::string prefix;
    GatherCut cut;
    std::uint32_t id;
    std::vector<int> numbers;  ///< in the order in which they are sent: first those that were there at once
    std::size_t sent;
    std::size_t ready;  ///< those before it may be sent
    std::size_t there;  ///< those before it are there
  };
  Table& table(const std::string& prefix, std::size_t numbers);

  const Values& values_;
  std::map<std::string, Table, std::less<>> tables_;
  std::map<int, Wait> waits_;  ///< by client
};

}  // namespace tsprun::detail::bootstrap
