// Chat templates that mean harm: what they make is counted before it takes memory or time, whatever way it is made.
#include "layers/text/template/chat_template.h"
#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include <ctime>
#include <string>
#include <utility>

namespace tsprun::detail::template_limits_test {
namespace {

// Sanitizers take memory beside each piece of memory, keep what was freed, and take time.
#if defined(TSP_SANITIZE_ADDRESS) || defined(TSP_SANITIZE_THREAD)
constexpr double kPatience = 5;
#else
constexpr double kPatience = 1;
#endif

constexpr const char* kTooMuch = "more time or memory than a template may take";

std::string render(const std::string& source) {
  return text::ChatTemplate::parse(source, "template").render(nlohmann::ordered_json::object(), 0);
}

/// Returns a text `times` over.
std::string repeated(std::size_t times, const std::string& piece) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

/// Returns this process' processor time in seconds, which other processes' load doesn't change.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Returns the most memory that this process has held, in MiB.
double peak() {
  ::rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) / 1024;
}

TEST(TemplateLimits, ListsShareTheirTexts) {
  const double before = peak();
  EXPECT_EQ(render("{% set n = namespace(l=['a' * 10000000]) %}{% for i in range(8) %}{% set n.l = n.l + n.l %}{% endfor %}"
                   "{{ n.l[:]|list|map('string')|reverse|length }}"),
            "256");
  EXPECT_LT(peak() - before, kPatience * 100) << "MiB; copies would take 2,560 and more";
}

TEST(TemplateLimits, WhatCopiesTextsIsCountedFirst) {
  const double before = peak();
  const std::string large = "{% set x = 'ab' * 10000000 %}";  // 20 MB, of the 268 that may be taken
  EXPECT_REFUSED(render(large + "{% for i in range(100) %}{% set y = dict({x: 1}) %}{% endfor %}"), kTooMuch);
  EXPECT_REFUSED(render(large + "{% set d = {x: 1} %}{% for i in range(100) %}{{ d|list|length }}{% endfor %}"), kTooMuch);
  EXPECT_REFUSED(render(large + "{% set d = {x: 1} %}{% for i in range(100) %}{{ d.items()|length }}{% endfor %}"), kTooMuch);
  EXPECT_REFUSED(render(large + "{% for i in range(100) %}{{ x[1:]|length }}{% endfor %}"), kTooMuch);
  EXPECT_REFUSED(render(large + "{% for i in range(100) %}{{ x|replace('c', 'd')|length }}{% endfor %}"), kTooMuch);
  EXPECT_REFUSED(render("{% set x = '\\a' * 50000000 %}{{ x|tojson }}"), kTooMuch);
  EXPECT_LT(peak() - before, kPatience * 1500) << "MiB";
}

TEST(TemplateLimits, WhatWalksOverTextsIsCounted) {
  const std::string large = "{% set x = ' ' * 10000000 %}{% set y = '' %}{% for i in range(10000) %}";
  const double before = processor_seconds();
  for (const char* each :
       {"x|trim", "x|length", "x.split()|length", "x.split('a')|length", "x == x ~ y", "{x: 1}[x ~ y]", "x|int"}) {
    SCOPED_TRACE(each);
    EXPECT_REFUSED(render(large + "{% set z = " + each + " %}{% endfor %}"), kTooMuch);
  }
  EXPECT_LT(processor_seconds() - before, kPatience * 60);
}

TEST(TemplateLimits, EachWordOfAPathIsCounted) {
  const std::string path = repeated(100'000, "0.");
  EXPECT_REFUSED(render("{{ ('a' * 1000)|map(attribute='" + path + "')|list|length }}"), kTooMuch);
  EXPECT_REFUSED(render("{{ ('a' * 1000)|selectattr('" + path + "')|list|length }}"), kTooMuch);
}

TEST(TemplateLimits, CountingCharactersTakesNoMemory) {
  const double before = peak();
  EXPECT_EQ(
      render("{% set x = 'é' * 20000000 %}{{ x|length }} {{ x.find('a') }} {{ x.count('') }} {{ x[19999999] }} {{ x[-1:] }}"),
      "20000000 -1 20000001 é é");
  EXPECT_LT(peak() - before, kPatience * 150) << "MiB; views would take 305";
}

TEST(TemplateLimits, ChainsAndListsOfTheParserAreBounded) {
  const auto expression = [](const std::string& first, std::size_t times, const std::string& link, const std::string& last = "") {
    return "{{ " + first + repeated(times, link) + last + " }}";
  };
  constexpr std::size_t kMany = 50'000;
  for (const char* link :
       {" if 1", " or 1", " and 1", " + 1", " ~ 1", " * 1", ".a", "[0]", "()", "|abs", " is odd", " is not odd"}) {
    SCOPED_TRACE(link);
    EXPECT_REFUSED(render(expression("1", kMany, link)), "line 1", "more than 400 operators");
  }
  for (const auto& each : {std::pair("not ", ""), std::pair("-", ""), std::pair("+", ""), std::pair("(", ")"),
                           std::pair("[", "]"), std::pair("{1:", "}"), std::pair("a[", "]"), std::pair("a(", ")"),
                           std::pair("a|b(", ")"), std::pair("1 is in [", "]"), std::pair("1 if 1 else ", "")}) {
    SCOPED_TRACE(each.first);
    EXPECT_REFUSED(render(expression("", kMany, each.first, "1" + repeated(kMany, each.second))),
                   "more than 100 levels of nesting");
  }
  EXPECT_REFUSED(render("{% if 1 %}" + repeated(kMany, "{% elif 1 %}") + "{% endif %}"), "more than 100 levels of nesting");
  EXPECT_EQ(render(expression("1", 50, " if 1")), "1");
}

TEST(TemplateLimits, CallsAndMacrosTakeAHundredValues) {
  const auto call = [](std::size_t count) { return "{{ f(" + repeated(count, "1,") + ") }}"; };
  EXPECT_REFUSED(render(call(101)), "a call with more than 100 arguments");
  EXPECT_REFUSED(render(call(100)), "'f' is undefined");
  std::string names;
  for (int i = 0; i < 100; ++i) names += fmt::format("a{},", i);
  const std::string macro = "{% macro f(" + names;
  EXPECT_EQ(render(macro + ") %}{{ a99 }}{% endmacro %}" + call(100)), "1");
  EXPECT_REFUSED(render(macro + "b) %}{% endmacro %}"), "a macro with more than 100 parameters");
  EXPECT_REFUSED(render("{{ dict(" + repeated(101, "a=1,") + ") }}"), "a call with more than 100 arguments");
}

TEST(TemplateLimits, NamesAreBounded) {
  EXPECT_REFUSED(render("{{ " + std::string(201, 'x') + " }}"), "a name of more than 200 letters");
  EXPECT_REFUSED(render("{{ " + std::string(200, 'x') + " + 1 }}"), std::string(100, 'x') + "…' is undefined");
}

TEST(TemplateLimits, RawIsReadInTimeOfItsLength) {
  const double before = processor_seconds();
  EXPECT_REFUSED(render("{% raw %}" + repeated(300'000, "{%")), "raw has no end: {% endraw %}");
  EXPECT_LT(processor_seconds() - before, kPatience * 2);
}

TEST(TemplateLimits, WholeNumbersDoNotOverflow) {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const char* each : {"-LEAST", "LEAST|abs", "LEAST - 1", "LEAST + -1", "LEAST * -1", "LEAST // -1", "LEAST % -1",
                           "-1 * LEAST", "9223372036854775807 + 1", "1e19|int", "'9223372036854775808'|int", "1e400"}) {
    std::string source = each;
    if (const std::size_t at = source.find("LEAST"); at != std::string::npos) source.replace(at, 5, least);
    SCOPED_TRACE(source);
    EXPECT_REFUSED(render("{{ " + source + " }}"), "too large a number");
  }
  EXPECT_EQ(render("{{ 'aaa'.replace('a', 'b', " + least + ") }}"), "bbb");
  EXPECT_EQ(render("{{ range(9223372036854775806, 9223372036854775807, 5)|list }}"), "[9223372036854775806]");
  EXPECT_EQ(render("{{ " + least + " is divisibleby(-1) }}{{ [1, 2][::" + least + "] }}{{ 'ab'[" + least + ":] }}"), "True[2]ab");
}

}  // namespace
}  // namespace tsprun::detail::template_limits_test
