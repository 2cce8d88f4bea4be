// Parses the value of --rdma.
#include "transport/verbs/choice.h"

#include "transport/cause.h"
#include "transport/number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>

namespace tsprun::detail::verbs {

namespace {

[[noreturn]] void refuse(std::string_view whole, const std::string& why) {
  throw Error(Cause::refused, fmt::format("--rdma {}: {}", whole, why));
}

int number_in(std::string_view text, std::string_view whole) {
  const std::optional<int> value = number_from<int>(text);
  if (!value || *value < 0) refuse(whole, "'device', 'device:port' or 'device:port:gid-index' is expected");
  return *value;
}

PortName port_name(std::string_view text, std::string_view whole) {
  PortName name;
  const std::size_t first = text.find(':');
  name.device = text.substr(0, first);
  if (name.device.empty() || name.device.front() == '^') number_in("", whole);
  if (first == std::string_view::npos) return name;
  const std::string_view rest = text.substr(first + 1);
  const std::size_t second = rest.find(':');
  name.port = number_in(rest.substr(0, second), whole);
  if (name.port == 0) number_in("", whole);
  if (second != std::string_view::npos) name.gid = number_in(rest.substr(second + 1), whole);
  // ibv_global_route::sgid_index has 8 bits.
  if (name.gid > std::numeric_limits<std::uint8_t>::max()) refuse(whole, "GID indices of queue pairs go up to 255");
  return name;
}

/// Returns the number that the text is, decimal or, after "0x", hexadecimal.
std::optional<int> setting_number(std::string_view text) {
  if (!text.starts_with("0x")) return number_from<int>(text);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

void take_setting(Settings& settings, std::string_view name, std::string_view value, std::string_view whole) {
  const auto row = std::ranges::find(kSettings, name, &SettingRow::name);
  if (row == kSettings.end()) {
    std::vector<std::string_view> names;
    for (const SettingRow& each : kSettings) names.push_back(each.name);
    refuse(whole, fmt::format("there is no setting '{}'; there are {}", name, fmt::join(names, ", ")));
  }
  const std::optional<int> number = setting_number(value);
  const auto works = [&](int given) {
    if (name == "mtu") return given == 256 || given == 512 || given == 1024 || given == 2048 || given == 4096;
    return name != "family" || given != 5;
  };
  if (!number || *number < row->lowest || *number > row->highest || !works(*number))
    refuse(whole, fmt::format("{}={}: {} to {} is expected: {}", name, value, row->lowest, row->highest, row->meaning));
  settings.*(row->field) = *number;
}

}  // namespace

DeviceChoice DeviceChoice::parse(std::string_view text) {
  DeviceChoice choice;
  choice.text = text;
  if (text.empty()) return choice;
  std::string_view rest = text;
  const bool excludes = rest.starts_with('^');
  if (excludes) rest.remove_prefix(1);
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    if (const std::size_t equals = word.find('='); equals != std::string_view::npos) {
      take_setting(choice.settings, word.substr(0, equals), word.substr(equals + 1), text);
    } else {
      (excludes ? choice.left_out : choice.named).push_back(port_name(word, text));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (excludes && choice.left_out.empty()) refuse(text, "the devices to leave out are expected after ^");
  return choice;
}

}  // namespace tsprun::detail::verbs
