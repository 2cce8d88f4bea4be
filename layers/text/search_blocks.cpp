// Hands out blocks to threads, and what they found in order.
#include "layers/text/search_blocks.h"

#include "transport/signals_blocked.h"

#include <exception>
#include <system_error>
#include <utility>

namespace tsprun::detail::text {

SearchBlocks::SearchBlocks(const Pattern& pattern, std::string_view text, const SearchPlan& plan)
    : pattern_(pattern), text_(text), ahead_(2 * plan.threads) {
  const auto is_inside = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80; };
  for (std::size_t begin = 0; begin < text.size(); begin += plan.block_bytes) {
    while (begin < text.size() && is_inside(begin)) ++begin;
    if (begin < text.size()) begins_.push_back(begin);
  }
  found_.resize(begins_.size());
  begins_.push_back(text.size() + 1);
  const SignalsBlocked blocked;
  threads_.reserve(plan.threads);
  try {
    for (std::size_t i = 0; i < plan.threads; ++i) threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {  // so many there are
  }
}

SearchBlocks::~SearchBlocks() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

void SearchBlocks::serve() {
  Pattern::begin_text(text_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || next_ == count() || next_ < taken_ + ahead_; });
    if (ending_ || next_ == count()) return;
    const std::size_t block = next_++;
    lock.unlock();
    std::vector<Place> matches = search(block);
    lock.lock();
    found_[block] = {.there = true, .matches = std::move(matches)};
    changed_.notify_all();
  }
}

std::vector<Place> SearchBlocks::search(std::size_t block) const {
  std::vector<Place> matches;
  try {
    Pattern::Search search;
    if (block > 0) search = {.match = {begin(block), begin(block)}, .from = begin(block), .any = true};
    while (pattern_.find(text_, search, end(block))) matches.push_back(search.match);
  } catch (const std::exception&) {  // perhaps where no search of the whole text comes by
  }
  return matches;
}

std::vector<Place> SearchBlocks::take(std::size_t block) {
  if (threads_.empty()) return {};
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return found_[block].there; });
  taken_ = block + 1;
  changed_.notify_all();
  return std::move(found_[block].matches);
}

}  // namespace tsprun::detail::text
