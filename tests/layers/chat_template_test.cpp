// Chat templates against what Jinja made of them (tests/text/compare_templates.py --write asked it), and what is refused.
#include "layers/text/template/chat_template.h"
#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>

namespace tsprun::detail::chat_template_test {
namespace {

using nlohmann::ordered_json;
using text::ChatTemplate;

constexpr std::time_t kNow = 1720182896;  // 2024-07-05 12:34:56 UTC

std::string render(const std::string& source, const ordered_json& variables = ordered_json::object()) {
  return ChatTemplate::parse(source, "chat_template.jinja").render(variables, kNow);
}

TEST(ChatTemplate, IsWhatJinjaMakesOfIt) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  const auto path = std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures/templates.json";
  const ordered_json all = ordered_json::parse(test::read_all(path));
  std::size_t made = 0;
  for (const ordered_json& each : all.at("cases")) {
    const auto source = each.at("template").get<std::string>();
    std::optional<std::string> found;
    std::string why;
    try {
      found = render(source, all.at("variables"));
    } catch (const Error& error) {
      EXPECT_EQ(error.cause(), Cause::refused);
      why = error.what();
    }
    if (each.at("text").is_null()) {
      EXPECT_FALSE(found) << source << "\n" << *found;
    } else {
      ++made;
      EXPECT_TRUE(found) << source << "\n" << why;
      EXPECT_EQ(found.value_or(""), each.at("text").get<std::string>()) << source;
    }
  }
  EXPECT_GT(made, 40U);
}

TEST(ChatTemplate, NamesWhatIsWrongAndWhere) {
  EXPECT_REFUSED(render("a\n{% include 'x' %}"), "chat_template.jinja, line 2", "include", "isn't supported");
  EXPECT_REFUSED(render("{{ x|xmlattr }}"), "line 1", "the filter xmlattr isn't supported", "abs, capitalize");
  EXPECT_REFUSED(render("{{ x is sameas 1 }}"), "the test sameas isn't supported");
  EXPECT_REFUSED(render("{{ 'a'.zfill(3) }}"), "the method zfill of a text isn't supported");
  EXPECT_REFUSED(render("\n\n{{ messages[0].role }}"), "line 3", "'messages' is undefined");
  EXPECT_REFUSED(render("{{ m.content + 'x' }}", {{"m", {{"role", "user"}}}}), "'m.content' is undefined");
  EXPECT_REFUSED(render("{{ raise_exception('roles must\x1b[2J alternate') }}"),
                 "the template refuses this conversation: roles must?[2J alternate");
  EXPECT_REFUSED(render("{% if x %}"), "ends before {% endif %}");
  EXPECT_REFUSED(render("\xff"), "byte 0 isn't UTF-8");
  EXPECT_REFUSED(render("{% break %}"), "{% break %} outside of a loop");
  EXPECT_REFUSED(render("{% for x in [1] %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}"),
                 "{% continue %} outside of a loop");
  EXPECT_REFUSED(render("{{ 1 % 0.0 }}"), "a division by 0: %");
}

TEST(ChatTemplate, ShowsWhatWouldWorkAndNotAllOfWhatIsWrong) {
  const std::string long_name(150, 'x');
  const std::string cut = std::string(60, 'x') + "…";
  // The lists are longer than what other files' texts are cut to.
  EXPECT_REFUSED(render("{{ x|" + long_name + " }}"), "the filter " + cut + " isn't supported; abs, capitalize",
                 "unique, upper are");
  EXPECT_REFUSED(render("{{ x is " + long_name + " }}"), "the test " + cut + " isn't supported; boolean, callable",
                 "undefined are");
  EXPECT_REFUSED(render("{% " + long_name + " %}"), "{% " + cut + " %} isn't known; for, if, set, macro", "and raw are");
  EXPECT_REFUSED(render("{% end" + long_name + " %}"), "{% endxxx", "… %} without its beginning");
  EXPECT_REFUSED(render("{{ 1 " + long_name + " }}"), "not '" + cut + "'");
  EXPECT_REFUSED(render("{{ 1 '" + std::string(60, 'a') + "é' }}"), "not '" + std::string(60, 'a') + "…'");
  EXPECT_REFUSED(render("{{ raise_exception('" + std::string(400, 'y') + "') }}"), std::string(400, 'y'));
  EXPECT_REFUSED(render("{{ raise_exception('y' * 2000) }}"), std::string(1000, 'y') + "…");
}

TEST(ChatTemplate, TellsTheTimeInAnyFormat) {
  EXPECT_EQ(render("[{{ strftime_now('') }}][{{ strftime_now('%%') }}][{{ strftime_now('%Y') }}]"), "[][%][2024]");
  EXPECT_REFUSED(render("{{ strftime_now('\\x00') }}"), "strftime_now: a format with a NUL");
  EXPECT_REFUSED(render("{{ strftime_now('%Y' * 500) }}"), "strftime_now: a text of more than 998 bytes");
}

TEST(ChatTemplate, BoundsWhatAHostileOneMayTake) {
  constexpr const char* kTooMuch = "more time or memory than a template may take";
  EXPECT_REFUSED(render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"), kTooMuch);
  const std::string grown = "{% set n = namespace(x='ab') %}{% for i in range(20) %}{% set n.x = n.x + n.x %}{% endfor %}";
  EXPECT_REFUSED(render("{% set n = namespace(x='ab') %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}"),
                 kTooMuch);
  EXPECT_REFUSED(render("{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
                 kTooMuch);
  EXPECT_REFUSED(
      render("{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}"),
      kTooMuch);
  EXPECT_REFUSED(render("{% set n = namespace(x=1, y=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
                        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}"),
                 kTooMuch);
  EXPECT_REFUSED(render("{{ range(1000000)|unique|list }}"), kTooMuch);
  const std::string alike = "{% set n = namespace(x='a') %}{% for i in range(23) %}{% set n.x = n.x + n.x %}{% endfor %}";
  // Minutes where a search takes the product of both lengths.
  EXPECT_EQ(render(alike + "{{ 'a' * 4000000 + 'b' in n.x }}"), "False");
  EXPECT_REFUSED(render(alike + "{{ n.x.rsplit('b' + 'a' * 4000000) }}"), kTooMuch);
  EXPECT_REFUSED(render(alike + "{{ n.x.strip('b' * 1000000 + 'a') }}"), kTooMuch);
  EXPECT_REFUSED(render("{{ {" +
                        [] {
                          std::string entries;
                          for (int i = 0; i < 100'000; ++i) entries += std::to_string(i).insert(0, "'").append("':1,");
                          return entries;
                        }() +
                        "} }}"),
                 kTooMuch);
  EXPECT_REFUSED(render(std::string(std::size_t{2} << 20, 'x')), "a template has at most 1048576");
  EXPECT_REFUSED(render(grown + "{{ n.x.replace('a', n.x) }}"), kTooMuch);
  EXPECT_REFUSED(render(grown + "{{ n.x|list|join(n.x) }}"), kTooMuch);
  EXPECT_REFUSED(render(grown + "{{ n.x.replace('a', '\n')|indent(n.x) }}"), kTooMuch);
  EXPECT_REFUSED(render("{{ range(1000000)|map('string')|map('replace', '1', 'x' * 1000000)|list }}"), kTooMuch);
  std::string sums = "{% macro f() %}{{ f()";
  for (int i = 0; i < 300; ++i) sums += "~'x'";
  EXPECT_REFUSED(render(sums + " }}{% endmacro %}{{ f() }}"), "1000 levels of nesting");
  EXPECT_REFUSED(render("{{ 'abc' * 4000000000000000000 }}"), kTooMuch);
  EXPECT_REFUSED(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "calls within each other");
  EXPECT_REFUSED(render("{% set n = namespace(x=1) %}{% for i in range(1000000) %}{% set n.x = [n.x] %}{% endfor %}"),
                 "within more than");
  EXPECT_REFUSED(render("{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = namespace(x=n.x) %}{% endfor %}"),
                 "a namespace within another value");
  EXPECT_REFUSED(render("{% set n = namespace(x={}) %}{% for i in range(1000000) %}{% set n.x = {'f': n.x.items} %}{% endfor %}"),
                 "within more than");
  EXPECT_REFUSED(render("{{ " + std::string(100'000, '(') + "1" + std::string(100'000, ')') + " }}"), "levels of nesting");
  EXPECT_REFUSED(render("{{ 1" +
                        [] {
                          std::string more;
                          for (int i = 0; i < 100'000; ++i) more += "+1";
                          return more;
                        }() +
                        " }}"),
                 "operators");
  EXPECT_REFUSED(render("{{ " + std::string(100'000, '-') + "1 }}"), "levels of nesting");
  std::string branches;
  for (int i = 0; i < 10'000; ++i) branches += "{% if x %}";
  EXPECT_REFUSED(render(branches), "levels of nesting");
  EXPECT_REFUSED(render("{{ range(100000000)|list|length }}"), "more than 1000000 numbers");
  EXPECT_REFUSED(render("{{ -9223372036854775807 - 2 }}"), "too large a number");
  EXPECT_REFUSED(render("{{ (-9223372036854775807 - 1) // -1 }}"), "too large a number");
}

}  // namespace
}  // namespace tsprun::detail::chat_template_test
