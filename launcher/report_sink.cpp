// Writes and reads frames, and parses their JSON with a limit on nesting.
#include "launcher/report_sink.h"

#include "transport/cause.h"

#include <algorithm>

namespace tsprun::detail::launcher {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kHeader = 5;

/// Returns an object as text. Texts that aren't UTF-8 are repaired instead of refused: a report is better than none.
std::string object_of(std::string_view key, const ordered_json& value) {
  return ordered_json{{key, value}}.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// Returns how deeply the objects and arrays of a JSON text are nested. (The parser's callback knows it, too, but costs a search
/// through all siblings whenever an object ends.)
std::size_t levels_of(std::string_view json) {
  std::size_t open = 0;
  std::size_t most = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      else if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      most = std::max(most, ++open);
    } else if ((c == '}' || c == ']') && open > 0) {
      --open;
    }
  }
  return most;
}

}  // namespace

void ReportSink::line(std::string_view text) { write_frame('L', text); }

void ReportSink::set(std::string_view key, const ordered_json& value) { write_frame('J', object_of(key, value)); }

void ReportSink::append(std::string_view key, const ordered_json& value) { write_frame('A', object_of(key, value)); }

void ReportSink::step(const ordered_json& row) {
  write_frame('S', row.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

void ReportSink::progress(std::string_view fields) { write_frame('P', fields); }

void ReportSink::text(std::string_view piece) { write_frame('T', piece); }

void ReportSink::error_line(std::string_view text) { write_frame('E', text); }

void ReportSink::write_frame(char kind, std::string_view payload) {
  if (!pipe_) return;
  if (payload.size() > kMaxFrame) throw Error(Cause::refused, "a report of more than 64 MiB in one piece");
  std::string frame(kHeader, kind);
  for (std::size_t i = 0; i < 4; ++i) frame[1 + i] = static_cast<char>((payload.size() >> (8 * i)) & 0xff);
  frame.append(payload);
  if (const int error = posix::write_all(pipe_.get(), frame); error != 0)
    throw system_error(Cause::disconnected, "writing results to tsprun", error);
}

bool FrameReader::feed(std::string_view bytes) {
  if (!damaged_) pending_.append(bytes);
  return !damaged_;
}

bool FrameReader::next(Frame& frame) {
  if (damaged_ || pending_.size() < kHeader) return false;
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length |= static_cast<std::size_t>(static_cast<unsigned char>(pending_[1 + i])) << (8 * i);
  const char kind = pending_[0];
  if (std::string_view("LTEJASP").find(kind) == std::string_view::npos || length > kMaxFrame) {
    damaged_ = true;
    pending_.clear();
    return false;
  }
  if (pending_.size() < kHeader + length) return false;
  frame.kind = kind;
  frame.payload = pending_.substr(kHeader, length);
  pending_.erase(0, kHeader + length);
  return true;
}

std::optional<ordered_json> parse_object(std::string_view json) {
  // Writing the report recurses as deep as it is nested.
  constexpr std::size_t kMostLevels = 64;
  if (levels_of(json) > kMostLevels) return std::nullopt;
  ordered_json object = ordered_json::parse(json, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  return object;
}

void merge_results(ordered_json& report, const FrameReader::Frame& frame) {
  const std::optional<ordered_json> values = parse_object(frame.payload);
  if (!values) return;
  for (const auto& [key, value] : values->items()) {
    if (frame.kind == 'J') {
      report[key] = value;
    } else if (frame.kind == 'A') {
      ordered_json& list = report[key];
      if (!list.is_array()) list = ordered_json::array();
      list.push_back(value);
    }
  }
}

}  // namespace tsprun::detail::launcher
