// Compiles and searches with Oniguruma, within limits of steps and memory.
#include "layers/text/expression.h"

#include "layers/io/json_text.h"
#include "layers/text/characters.h"
#include "layers/text/search_blocks.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tsprun::detail::text {

namespace {

// An expression that tries more than this at one place is refused: it would take exponentially long. The engine's own default.
constexpr unsigned long kMostSteps = 10'000'000;
constexpr unsigned long kMostStepsPerByte = 100;
// Places to which a match may go back, of 40 bytes each: what a run of so many letters needs.
constexpr unsigned kMostPlaces = 16'000'000;

// The engine counts neither what a match takes in nor what it looks ahead at, so time is limited too: of a thread's processor,
// for all matches in a text. One match alone, or one search of a short text, isn't stopped.
constexpr double kMostSeconds = 2;
constexpr double kMostSecondsPerByte = 1e-6;
// Asking for it costs a system call, so it is asked for when this much has passed on a clock that costs next to nothing.
constexpr double kSecondsBetweenLooks = 0.05;
// A search through more than this asks the engine about one place after the other, since it can't be stopped: trying a match at
// each of so many bytes, where each takes in all that follow, costs some 0.1 s.
constexpr std::size_t kBytesOfASearch = 8192;

double seconds_on(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Says whether an expression escapes one of these letters, "\\G", not "\\\\G".
bool escapes(std::string_view source, std::string_view letters) {
  for (std::size_t i = 0; i + 1 < source.size(); ++i) {
    if (source[i] == '\\' && letters.find(source[++i]) != letters.npos) return true;
  }
  return false;
}

/// Says whether trying a match at a place takes few steps unless it succeeds: no part of the expression but its last repeats, and
/// none looks at more than a character, as text boundaries and clusters do. False for some of which it holds.
bool fails_quickly(std::string_view source) {
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool last = i + 1 == source.size();
    if (source[i] == '(' || (!last && (source[i] == '*' || source[i] == '+'))) return false;
    if (source[i] == '{' && !last && (source[i + 1] == ',' || (source[i + 1] >= '0' && source[i + 1] <= '9'))) return false;
  }
  return !escapes(source, "XyY");
}

/// The time that a thread has for its present text.
struct TimeOfText {
  std::size_t bytes = 0;
  bool begun = false;  // the two that follow are set
  double began = 0;    // the thread's processor time when it first looked for an expression
  double looked = 0;   // when that was last asked for, on the coarse clock

  /// Begins the time at the first call. Returns whether it is over.
  bool over() {
    const double now = seconds_on(CLOCK_MONOTONIC_COARSE);
    if (!begun) {
      begun = true;
      began = seconds_on(CLOCK_THREAD_CPUTIME_ID);
      looked = now;
    }
    if (now - looked <= kSecondsBetweenLooks) return false;
    looked = now;
    return seconds_on(CLOCK_THREAD_CPUTIME_ID) - began > kMostSeconds + kMostSecondsPerByte * static_cast<double>(bytes);
  }
};
thread_local TimeOfText time_of_text;

const OnigUChar* bytes_of(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string trouble(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> message{};
  const int bytes =
      info != nullptr ? onig_error_code_to_str(message.data(), code, info) : onig_error_code_to_str(message.data(), code);
  return shown({reinterpret_cast<const char*>(message.data()), static_cast<std::size_t>(bytes)});
}

/// What a search writes to; each thread has its own.
struct Scratch {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
  Scratch() {
    onig_initialize_match_param(limits);
    onig_set_retry_limit_in_match_of_match_param(limits, kMostSteps);
    onig_set_match_stack_limit_size_of_match_param(limits, kMostPlaces);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }
};

}  // namespace

struct Pattern::Compiled {
  OnigRegex regex = nullptr;
  std::string source;
  bool quick = false;  // see fails_quickly()
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { onig_free(regex); }
};

Pattern Pattern::literal(std::string text) { return Pattern(std::move(text), nullptr); }

Pattern Pattern::expression(const std::string& source) {
  // The library parses with tables of its own, which no two threads may fill at once.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  static const int initialized = [] {
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    onig_set_parse_depth_limit(250);
    return onig_initialize(&encoding, 1);
  }();
  (void)initialized;
  auto compiled = std::make_shared<Compiled>();
  compiled->source = source;
  compiled->quick = fails_quickly(source);
  // It would say where a search began, which isn't always told to the engine.
  if (escapes(source, "G")) throw std::invalid_argument("\\G isn't supported");
  OnigErrorInfo info{};
  const int code = onig_new(&compiled->regex, bytes_of(source.data()), bytes_of(source.data() + source.size()), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, OnigDefaultSyntax, &info);
  if (code != ONIG_NORMAL) {
    compiled->regex = nullptr;
    throw std::invalid_argument(trouble(code, &info));
  }
  return Pattern({}, std::move(compiled));
}

void Pattern::give_up(std::string_view text, std::size_t at, std::string_view why) const {
  throw Error(Cause::refused,
              fmt::format("the tokenizer's expression {} gives up on a text of {} bytes at byte {}: {}; texts in shorter "
                          "parts would work",
                          shown(compiled_->source), text.size(), at, why));
}

void Pattern::begin_text(std::size_t bytes) { time_of_text = {.bytes = bytes}; }

bool Pattern::find_from(std::string_view text, std::size_t from, std::size_t until, Place& match) const {
  if (!compiled_) {
    const std::size_t at = text.find(literal_, from);
    match = {at, at + literal_.size()};
    return at < until && at != std::string_view::npos;
  }
  thread_local Scratch scratch;
  const OnigUChar* begin = bytes_of(text.data());
  // A search may try at each place: enough for what any tokenizer needs, too little for the square of a long text's length.
  onig_set_retry_limit_in_search_of_match_param(scratch.limits, kMostSteps + kMostStepsPerByte * text.size());
  const OnigUChar* end = begin + text.size();
  int at = ONIG_MISMATCH;
  for (bool all = false; at == ONIG_MISMATCH && !all && from < until;) {
    // A search tries all places that are left: where it's told to try some, the engine takes the text for ended behind them.
    all = compiled_->quick || text.size() - from <= kBytesOfASearch;
    at =
        all ? onig_search_with_param(compiled_->regex, begin, end, begin + from, end, scratch.region, ONIG_OPTION_NONE,
                                     scratch.limits)
            : onig_match_with_param(compiled_->regex, begin, end, begin + from, scratch.region, ONIG_OPTION_NONE, scratch.limits);
    if (time_of_text.over()) give_up(text, from, "it takes too long");
    if (at == ONIG_MISMATCH && !all) from += character_at(text, from).bytes;
  }
  if (at == ONIG_MISMATCH) return false;
  if (at < 0) give_up(text, from, trouble(at, nullptr));
  match = {static_cast<std::size_t>(scratch.region->beg[0]), static_cast<std::size_t>(scratch.region->end[0])};
  return match.begin < until;
}

bool Pattern::find(std::string_view text, Search& search, std::size_t until) const {
  while (search.from < until) {
    const std::size_t last = search.match.end;
    Place found{};
    if (!find_from(text, search.from, until, found)) {
      search.from = until;
      return false;
    }
    if (found.begin == found.end && search.any && found.end == last) {
      search.from += search.from < text.size() ? character_at(text, search.from).bytes : 1;
      continue;
    }
    search.match = found;
    search.from = found.end;
    search.any = true;
    return true;
  }
  return false;
}

SearchPlan SearchPlan::of(std::size_t bytes) {
  constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  if (bytes < 4 * kBlockBytes) return {.threads = 1, .block_bytes = kBlockBytes};
  return {.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 16U), .block_bytes = kBlockBytes};
}

void Pattern::each_match(std::string_view text, const SearchPlan& plan, FunctionRef<void(Place)> take) const {
  // Literals are found quickly, and what fails quickly is searched for in all of a text.
  if (plan.threads > 1 && text.size() > plan.block_bytes && compiled_ && !compiled_->quick)
    return each_match_of_blocks(text, plan, take);
  Search search;
  while (find(text, search, text.size() + 1)) take(search.match);
}

void Pattern::each_match_of_blocks(std::string_view text, const SearchPlan& plan, FunctionRef<void(Place)> take) const {
  SearchBlocks blocks(*this, text, plan);
  Search search;
  for (std::size_t block = 0; block < blocks.count(); ++block) {
    const std::vector<Place> found = blocks.take(block);
    // Takes what the block's search found behind the place that this one has got to, if it came by there: it began there, or
    // found a match that ends there, too.
    const auto take_what_follows = [&] {
      if (search.from != search.match.end) return;  // not behind a match
      auto next = found.begin();
      if (search.from != blocks.begin(block)) {
        next = std::ranges::lower_bound(found, search.from, {}, &Place::end);
        if (next == found.end() || next->end != search.from) return;
        ++next;
      }
      for (; next != found.end(); ++next) {
        take(*next);
        search = {.match = *next, .from = next->end, .any = true};
      }
    };
    take_what_follows();
    while (find(text, search, blocks.end(block))) {
      take(search.match);
      take_what_follows();
    }
  }
}

}  // namespace tsprun::detail::text
