// Searches of a long text by several threads. Matches follow from where a search begins, so each thread searches a block of the
// text as if a match had ended where it begins. Where the matches of the text itself come by an end of one of those, they are the
// same from there on, after a word or two as a rule.
#pragma once

#include "layers/text/expression.h"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace tsprun::detail::text {

/// Threads that search the blocks of a text, in their order, some ahead of who takes what they find. For one thread.
class SearchBlocks {
 public:
  /// Starts the threads. `pattern` and `text` are borrowed, and so long are the blocks in bytes, but for whole characters. Where
  /// there can't be threads, nothing is found ahead.
  SearchBlocks(const Pattern& pattern, std::string_view text, const SearchPlan& plan);
  SearchBlocks(const SearchBlocks&) = delete;
  SearchBlocks& operator=(const SearchBlocks&) = delete;
  /// Waits until the threads have ended the blocks that they search.
  ~SearchBlocks();

  std::size_t count() const { return begins_.size() - 1; }
  std::size_t begin(std::size_t block) const { return begins_[block]; }
  /// Returns where a block ends: for the last one behind the text, where an empty match may be, too.
  std::size_t end(std::size_t block) const { return begins_[block + 1]; }
  /// Waits for a block's matches, each of which begins in it: all of a search that begins where the block does, or the first of
  /// them if the engine gave up. Blocks are taken once each, in order.
  std::vector<Place> take(std::size_t block);

 private:
  struct Found {
    bool there = false;
    std::vector<Place> matches;
  };
  void serve();
  std::vector<Place> search(std::size_t block) const;

  const Pattern& pattern_;
  std::string_view text_;
  std::size_t ahead_;  // blocks that are searched at most before who takes them has come to the first
  std::vector<std::size_t> begins_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Found> found_;  // by block; under mutex_, as are the next three
  std::size_t next_ = 0;      // block to be searched
  std::size_t taken_ = 0;     // blocks
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace tsprun::detail::text
