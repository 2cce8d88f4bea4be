// Libraries that are loaded when they are needed: what is said of one that isn't there, or lacks a function.
#include "transport/loaded_library.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

namespace tsprun::detail::loaded_library_test {
namespace {

TEST(LoadedLibrary, FindsItsFunctions) {
  const LoadedLibrary mathematics("libm.so.6", "by which numbers are rounded", "every Debian has it");
  EXPECT_EQ(mathematics.find<double (*)(double)>("floor")(2.5), 2.0);
}

TEST(LoadedLibrary, IsRefusedByNameWithWhereItComesFrom) {
  const std::string missing =
      test::refused_text([] { LoadedLibrary("libnosuch.so.7", "by which nothing is done", "no package brings it"); });
  for (const char* part : {"can't load libnosuch.so.7", "by which nothing is done", "no package brings it", "cannot open"})
    EXPECT_NE(missing.find(part), std::string::npos) << missing;

  const LoadedLibrary mathematics("libm.so.6", "by which numbers are rounded", "every Debian has it");
  const std::string too_old = test::refused_text([&] { mathematics.find<void (*)()>("square_of_circle"); });
  for (const char* part : {"libm.so.6", "square_of_circle", "every Debian has it"})
    EXPECT_NE(too_old.find(part), std::string::npos) << too_old;
}

}  // namespace
}  // namespace tsprun::detail::loaded_library_test
