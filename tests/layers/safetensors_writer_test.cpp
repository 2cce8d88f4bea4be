// Writing safetensors files: the exact bytes, several processes on one file, and that readers see the old file or the new one,
// whole.
#include "layers/io/safetensors_writer.h"
#include "layers/io/file.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::safetensors::safetensors_writer_test {
namespace {

/// Runs `body` in a process of its own; true if it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "child: %s\n", failure.what());
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(SafetensorsWriter, WritesTheBytesThatTheFormatPrescribes) {
  const test::TemporaryFolder folder;
  const Plan plan({{"b", DType::bf16, {1}}, {"a", DType::f32, {1, 2}}});
  Writer writer = Writer::create(folder / "m.safetensors", plan);
  const std::vector<float> a = {1, -2};
  const std::vector<float> b = {0.5};
  writer.write("a", std::span(a));
  writer.write("b", std::span(b));
  EXPECT_FALSE(std::filesystem::exists(folder / "m.safetensors"));
  writer.publish();

  std::string json = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                     R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})";
  while (json.size() % 8 != 0) json += ' ';
  const std::string length = {static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0};
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x3f", 10);
  EXPECT_EQ(test::read_all(folder / "m.safetensors"), length + json + data);
  EXPECT_FALSE(std::filesystem::exists(folder / "m.safetensors.partial"));
}

TEST(SafetensorsWriter, IsNotReplacedByAnotherRun) {
  const test::TemporaryFolder folder;
  const Plan plan({{"a", DType::f32, {2}}});
  const std::vector<float> values = {1, 2};
  const std::filesystem::path path = folder / "m.safetensors";
  const std::filesystem::path partial = folder / "m.safetensors.partial";
  {
    Writer writer = Writer::create(path, plan);
    EXPECT_FALSE(discard_unfinished(path));
    EXPECT_REFUSED(Writer::create(path, plan), "m.safetensors.partial: another process writes it");
    writer.write("a", std::span(values));
    writer.publish();
  }
  EXPECT_EQ(test::read_all(path).size(), plan.file_bytes());
  // As on a file system without locks, where nothing keeps the other run from it.
  {
    Writer writer = Writer::create(path, plan);
    std::filesystem::remove(partial);
    folder.write("m.safetensors.partial", "theirs");
    EXPECT_REFUSED(writer.publish(), "m.safetensors.partial: another process has replaced it");
  }
  EXPECT_EQ(test::read_all(partial), "theirs");
  EXPECT_EQ(test::read_all(path).size(), plan.file_bytes());
  EXPECT_TRUE(discard_unfinished(path));
  EXPECT_FALSE(std::filesystem::exists(partial));
}

/// Where space is reserved by writing, that takes as long as writing the file, and others wait.
TEST(SafetensorsWriter, TicksWhileItReservesSpace) {
  const test::TemporaryFolder folder;
  const Plan plan({{"a", DType::f32, {std::size_t{9} << 20}}});  // 36 MiB
  int ticks = 0;
  const Writer writer = Writer::create(folder / "m.safetensors", plan, [&] { ++ticks; });
  EXPECT_EQ(ticks, 3);
  EXPECT_EQ(std::filesystem::file_size(folder / "m.safetensors.partial"), plan.file_bytes());
}

TEST(SafetensorsWriter, LetsSeveralProcessesWriteTheirSlices) {
  const test::TemporaryFolder folder;
  constexpr std::size_t kRows = 12;
  constexpr std::size_t kColumns = 10;
  const Plan plan({{"rows", DType::f64, {3, 4, kColumns}}, {"columns", DType::f32, {kRows, kColumns}}});
  Writer writer = Writer::create(folder / "m.safetensors", plan);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const bool written = in_child([&] {
      Writer mine = Writer::join(folder / "m.safetensors", plan);
      std::vector<float> rows(kRows / 2 * kColumns);
      std::vector<double> columns(kRows * kColumns / 2);
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(rank * rows.size() + i);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::size_t element = i / 5 * kColumns + rank * 5 + i % 5;
        columns[i] = static_cast<double>(element);
      }
      mine.write("rows", {rank * kRows / 2, kRows / 2, 0, kColumns}, std::span(rows));
      mine.write("columns", {0, kRows, rank * 5, 5}, std::span(columns));
      mine.sync();
      return true;
    });
    ASSERT_TRUE(written);
  }
  writer.publish();

  const File file(folder / "m.safetensors");
  for (const char* name : {"rows", "columns"}) {
    std::vector<double> all(kRows * kColumns);
    file.read(*file.find(name), std::span(all));
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<double>(i)) << name;
  }
}

TEST(SafetensorsWriter, LeavesTheOldFileWholeUntilItPublishes) {
  const test::TemporaryFolder folder;
  folder.write("m.safetensors", "old");
  const Plan plan({{"a", DType::f32, {1}}});
  const std::vector<float> a = {1};
  {
    Writer writer = Writer::create(folder / "m.safetensors", plan);
    writer.write("a", std::span(a));
    EXPECT_EQ(test::read_all(folder / "m.safetensors"), "old");
  }
  EXPECT_EQ(test::read_all(folder / "m.safetensors"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "m.safetensors.partial")) << "an unpublished file was left behind";

  // A leftover of a killed process, longer than the new file.
  folder.write("m.safetensors.partial", std::string(100'000, 'x'));
  Writer writer = Writer::create(folder / "m.safetensors", plan);
  writer.write("a", std::span(a));
  writer.publish();
  EXPECT_NO_THROW(File(folder / "m.safetensors"));
}

TEST(SafetensorsWriter, RefusesWhatTheDiskCantTakeAndLeavesNothing) {
  const test::TemporaryFolder folder;
  const Plan plan({{"a", DType::f32, {1'000'000}}});
  EXPECT_TRUE(in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      const Writer writer = Writer::create(folder / "m.safetensors", plan);
    } catch (const Error& error) {
      return error.cause() == Cause::refused && std::string_view(error.what()).find("m.safetensors") != std::string_view::npos;
    }
    return false;
  }));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const posix::UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  const std::vector<std::byte> bytes(10);
  EXPECT_REFUSED(file::write(full, "/dev/full", 0, bytes), "/dev/full", "No space left on device");
  EXPECT_REFUSED(Writer::create(folder / "no" / "such.safetensors", plan), "such.safetensors", "No such file");
}

TEST(SafetensorsWriter, RefusesWhatIsntPlanned) {
  const test::TemporaryFolder folder;
  const Plan plan({{"a", DType::f32, {2, 2}}});
  Writer writer = Writer::create(folder / "m.safetensors", plan);
  const std::vector<float> values(4);
  EXPECT_REFUSED(writer.write("b", std::span(values)), "\"b\" isn't planned");
  EXPECT_REFUSED(writer.write("a", {1, 2, 0, 2}, std::span(values)), "\"a\"", "don't lie");
  EXPECT_REFUSED(writer.write("a", ConstBuffer(values.data(), 4, DType::byte)), "\"a\"", "bytes can't be written");
  EXPECT_REFUSED(Plan({{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), "\"a\"", "twice");
  EXPECT_REFUSED(Plan({{"a", DType::f32, {std::size_t{1} << 40, std::size_t{1} << 40}}}), "\"a\"", "too large");
  const Plan other({{"a", DType::f32, {2, 3}}});
  EXPECT_REFUSED(Writer::join(folder / "m.safetensors", other), "another plan");
}

TEST(SafetensorsWriter, PlansEmptyAndScalarTensors) {
  const test::TemporaryFolder folder;
  const Plan plan({{"empty", DType::f32, {0, 3}}, {"scalar", DType::f64, {}}}, {});
  Writer writer = Writer::create(folder / "m.safetensors", plan);
  const std::vector<double> one = {3.5};
  writer.write("scalar", std::span(one));
  writer.publish();
  const File file(folder / "m.safetensors");
  EXPECT_TRUE(file.metadata().empty());
  std::vector<double> back(1);
  file.read(*file.find("scalar"), std::span(back));
  EXPECT_EQ(back, one);
  EXPECT_EQ(file.find("empty")->elements(), 0U);
}

TEST(SafetensorsWriter, GivesAFileWithoutANameOneWhenItIsWhole) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "m.safetensors";
  const Plan plan({{"a", DType::f32, {2}}});
  const std::vector<float> values = {1, 2};
  for (const bool is_new : {true, false}) {  // then it replaces the old one
    posix::UniqueFd unnamed = unnamed_file(path);
    ASSERT_TRUE(unnamed) << "the test's file system has no files without names";
    const posix::UniqueFd kept(::dup(unnamed.get()));
    const auto shared = [&] { return posix::UniqueFd(::dup(kept.get())); };
    Writer writer = Writer::create(path, plan, {}, std::move(unnamed));
    EXPECT_EQ(std::filesystem::exists(path), !is_new);
    EXPECT_REFUSED(Writer::join(path, Plan({{"a", DType::f32, {3}}}), shared()), "another plan");
    ASSERT_TRUE(in_child([&] {
      Writer::join(path, plan, shared()).write("a", std::span(values));
      return true;
    }));
    writer.publish();
    std::vector<float> back(2);
    const File file(path);
    file.read(*file.find("a"), std::span(back));
    EXPECT_EQ(back, values);
    EXPECT_FALSE(std::filesystem::exists(folder / "m.safetensors.partial"));
  }
  // Unpublished, nothing is left of it, whatever ends its processes.
  std::filesystem::remove(path);
  in_child([&] {
    Writer writer = Writer::create(path, plan, {}, unnamed_file(path));
    ::kill(::getpid(), SIGKILL);
    return true;
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tsprun::detail::safetensors::safetensors_writer_test
