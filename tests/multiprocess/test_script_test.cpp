// tools/test.sh: what its last line says of passed, failed and skipped tests. It runs in a project of four tests that need no
// compiler.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tsprun::detail::test::test_script_test {
namespace {

/// Runs a copy of tools/test.sh over a test that passes, two that say by exit code 3 that they can't run, and one of this exit
/// code.
Finished run_script(int last_code) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder.path("tools"));
  for (const char* name : {"test.sh", "lib.sh"})
    std::filesystem::copy_file(std::string(TSP_TOOLS_DIR "/") + name, folder.path(std::string("tools/") + name));
  std::ofstream(folder.path("tools/packages.txt")) << "# nothing to install\n";
  std::ofstream(folder.path("CMakePresets.json")) << R"({
    "version": 6,
    "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
    "buildPresets": [{"name": "release", "configurePreset": "release"}],
    "testPresets": [{"name": "release", "configurePreset": "release"}]})";
  std::ofstream(folder.path("CMakeLists.txt")) << R"(cmake_minimum_required(VERSION 3.25)
    project(four_tests NONE)
    enable_testing()
    add_custom_target(test_programs)
    add_test(NAME good COMMAND sh -c "exit 0")
    add_test(NAME lab.first COMMAND sh -c "exit 3")
    add_test(NAME lab.second COMMAND sh -c "exit 3")
    add_test(NAME last COMMAND sh -c "exit )" << last_code
                                               << R"(")
    set_tests_properties(lab.first lab.second PROPERTIES SKIP_RETURN_CODE 3))";
  return run_program({"/bin/bash", folder.path("tools/test.sh")});
}

TEST(TestScript, LastLineCountsAndNamesSkippedTests) {
  const Finished run = run_script(0);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(lines_of(run.out).back(), "test.sh: passed: 2 tests in 1 part, 2 skipped: lab.first lab.second");
}

TEST(TestScript, SkippedTestsAreNoFailedOnes) {
  const Finished run = run_script(1);
  EXPECT_EQ(run.end.code, 1) << run.describe();
  EXPECT_EQ(lines_of(run.out).back(),
            "test.sh: failed: 1 of 4 tests; failed parts: release, all tests but the slow ones, 2 skipped: lab.first lab.second");
}

}  // namespace
}  // namespace tsprun::detail::test::test_script_test
