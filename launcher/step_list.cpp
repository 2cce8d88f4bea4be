// Keeps rows as lines, and moves them to the file when a buffer is full.
#include "launcher/step_list.h"

#include "launcher/report_sink.h"
#include "layers/io/file.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

}  // namespace

void StepList::append(std::string_view json) {
  if (!trouble_.empty()) return;
  const std::optional<nlohmann::ordered_json> row = parse_object(json);
  if (!row) return;
  last_ += row->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  last_ += '\n';
  if (last_.size() >= kBufferBytes) move_to_file();
}

void StepList::move_to_file() {
  try {
    if (!file_) file_ = file::open_unnamed(beside_.parent_path());
    if (!file_) file_ = file::open_unnamed(std::filesystem::temp_directory_path());
    if (!file_) throw Error(Cause::refused, "no file can be made for them, neither there nor in $TMPDIR");
    file::write(file_, beside_, in_file_, std::as_bytes(std::span(last_)));
    in_file_ += last_.size();
    last_.clear();
  } catch (const std::exception& failure) {
    trouble_ = fmt::format("steps are missing in the report {}: {}", beside_.string(), failure.what());
  }
}

void StepList::each(const std::function<bool(std::string_view, std::uint64_t)>& look) const {
  std::string rows;
  std::uint64_t place = 0;  // of the first byte in `rows`
  // Looks at the whole rows, and keeps the beginning of the last.
  const auto look_at_rows = [&] {
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rows.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (!look(std::string_view(rows).substr(begin, end - begin), place + begin)) return false;
    }
    rows.erase(0, begin);
    place += begin;
    return true;
  };
  for (std::uint64_t read = 0; read < in_file_;) {
    const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, in_file_ - read));
    const std::size_t kept = rows.size();
    rows.resize(kept + some);
    file::read(file_, beside_, read, std::as_writable_bytes(std::span(rows).subspan(kept)));
    read += some;
    if (!look_at_rows()) return;
  }
  rows += last_;
  look_at_rows();
}

void StepList::keep_up_to(std::uint64_t step) {
  std::optional<std::uint64_t> cut;
  each([&](std::string_view row, std::uint64_t place) {
    const nlohmann::json object = nlohmann::json::parse(row, nullptr, false);
    const auto number = object.find("step");
    if (number == object.end() || !number->is_number_unsigned() || number->get<std::uint64_t>() <= step) return true;
    cut = place;
    return false;
  });
  if (!cut) return;
  if (*cut >= in_file_) {
    last_.resize(*cut - in_file_);
    return;
  }
  in_file_ = *cut;
  last_.clear();
}

void StepList::print(const std::function<void(std::string_view)>& take) const {
  std::string_view before = "[\n  ";
  each([&](std::string_view row, std::uint64_t) {
    take(before);
    take(row);
    before = ",\n  ";
    return true;
  });
  take(before.front() == '[' ? "[]" : "\n ]");
}

}  // namespace tsprun::detail::launcher
