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

namespace tsprun::detail::template_limits_test {
namespace {

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
  EXPECT_LT(peak() - before, 100) << "MiB; copies would take 2,560 and more";
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
  EXPECT_LT(peak() - before, 1500) << "MiB";
}

TEST(TemplateLimits, WhatWalksOverTextsIsCounted) {
  const std::string large = "{% set x = ' ' * 10000000 %}{% set y = '' %}{% for i in range(10000) %}";
  const double before = processor_seconds();
  for (const char* each : {"x|trim", "x|length", "x[9999999]", "x.split()|length", "x.split('a')|length", "'a' in x",
                           "x == x ~ y", "{x: 1}[x ~ y]", "x < x ~ y", "x|int", "x.count('')"}) {
    SCOPED_TRACE(each);
    EXPECT_REFUSED(render(large + "{% set z = " + each + " %}{% endfor %}"), kTooMuch);
  }
  EXPECT_LT(processor_seconds() - before, 60);
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
  EXPECT_LT(peak() - before, 150) << "MiB; views would take 305";
}

}  // namespace
}  // namespace tsprun::detail::template_limits_test
