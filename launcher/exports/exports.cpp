// Reads --export, and calls the writers.
#include "launcher/exports/exports.h"

#include "launcher/exports/chakra.h"
#include "launcher/exports/goal.h"
#include "launcher/model/model_options.h"
#include "launcher/refuse.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace tsprun::detail::launcher {

Exports read_exports(const std::vector<std::string>& texts) {
  Exports exports;
  for (const std::string& text : texts) {
    const std::size_t colon = text.find(':');
    const std::string kind = text.substr(0, colon);
    const std::string path = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    if ((kind != "goal" && kind != "chakra") || path.empty() || path == "-")
      refuse(fmt::format("--export {}: expected goal:FILE or chakra:DIR", text));
    std::string& into = kind == "goal" ? exports.goal : exports.chakra;
    if (!into.empty()) refuse(fmt::format("--export {} and --export {}:{}: give one of them", text, kind, into));
    into = path;
  }
  if (!exports.goal.empty()) check_writable("--export goal", exports.goal);
  if (!exports.chakra.empty()) {
    while (exports.chakra.size() > 1 && exports.chakra.ends_with('/')) exports.chakra.pop_back();
    std::error_code error;
    const bool is_folder = std::filesystem::is_directory(exports.chakra, error);
    if (!is_folder && std::filesystem::exists(exports.chakra, error))
      refuse(fmt::format("--export chakra:{}: it isn't a folder", exports.chakra));
    check_writable("--export chakra", is_folder ? chakra_file(exports.chakra, 0) : exports.chakra);
  }
  return exports;
}

void write_exports(const Exports& exports, const theory::Simulated& played, bool blocking) {
  if (!exports.goal.empty()) write_goal(played.tasks, exports.goal);
  if (exports.chakra.empty()) return;
  std::error_code error;
  std::filesystem::create_directory(exports.chakra, error);  // if it fails, so does writing into it
  write_chakra(played.programs, blocking, exports.chakra);
}

}  // namespace tsprun::detail::launcher
