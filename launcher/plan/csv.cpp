#include "launcher/plan/csv.h"

#include "launcher/outputs.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>

namespace tsprun::detail::launcher {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + '"';
}

std::string write_csv(const std::string& option, const std::string& path, const std::string& table) {
  if (path == "-") {
    const int error = write_all(lent_standard_output(), table);
    return error == 0 ? std::string() : fmt::format("{} -: writing the table: {}", option, std::strerror(error));
  }
  std::ofstream file(path, std::ios::binary);
  file << table;
  file.flush();
  return file ? std::string() : fmt::format("{} {}: writing the table failed", option, path);
}

}  // namespace tsprun::detail::launcher
