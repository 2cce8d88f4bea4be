// Reading safetensors files whose bytes are put together by hand: slices with conversion, and every way in which a header can
// lie.
#include "layers/io/safetensors.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::safetensors::safetensors_test {
namespace {

std::string length_word(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string file_bytes(const std::string& json, const std::string& data) { return length_word(json.size()) + json + data; }

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

TEST(SafetensorsFile, SaysWhichBytesItReads) {
  const test::TemporaryFolder folder;
  const auto path = folder.write(
      "a.safetensors",
      file_bytes(R"({"w": {"dtype": "F32", "shape": [8, 6000], "data_offsets": [0, 192000]}})", raw(counting(48000))));
  const File file(path);
  const TensorInfo& w = *file.find("w");
  const file::Range all = file.range_of(w, whole(w));
  EXPECT_EQ(all.path, path);
  EXPECT_EQ(all.offset, w.offset);
  EXPECT_EQ(all.bytes, w.bytes);
  EXPECT_EQ(file.range_of(w, {3, 2, 10, 5000}).offset, w.offset + (3 * 6000 + 10) * 4);
  // Columns that lie 4000 bytes apart are read with what lies between, those that lie 23960 bytes apart without it.
  for (const auto& [columns, bytes] : {std::pair<std::size_t, std::size_t>{6000, 192000}, {5000, 192000}, {10, 0}}) {
    EXPECT_EQ(file.range_of(w, {0, 8, 0, columns}).bytes, bytes);
    std::uint64_t of_pieces = 0;
    for (const auto& [row, rows] : {std::pair<std::size_t, std::size_t>{0, 1}, {1, 2}, {3, 5}})
      of_pieces += file.range_of(w, {row, rows, 0, columns}).bytes;
    EXPECT_EQ(of_pieces, bytes) << columns;
  }
  EXPECT_EQ(file.range_of(w, {0, 8, 0, 0}).bytes, 0U);
  EXPECT_EQ(file.range_of(w, {8, 0, 0, 6000}).bytes, 0U);
}

TEST(SafetensorsFile, ReadsRowsAndColumnsInAnyElementType) {
  const test::TemporaryFolder folder;
  // w [4, 6] F32 counting up, x [2, 1, 3] BF16, s [] F64
  const std::vector<std::uint16_t> x = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
  const auto path = folder.write(
      "a.safetensors",
      file_bytes(
          R"({"__metadata__":{"format":"pt"},"x":{"dtype":"BF16","shape":[2,1,3],"data_offsets":[96,108]},)"
          R"("w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]},"s":{"dtype":"F64","shape":[],"data_offsets":[108,116]},)"
          R"("e":{"dtype":"F16","shape":[0,5],"data_offsets":[116,116]}}   )",
          raw(counting(24)) + raw(x) + raw(std::vector<double>{0.1})));
  const File file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.find("nothing"), nullptr);

  const TensorInfo& w = *file.find("w");
  EXPECT_EQ(w.rows(), 4U);
  EXPECT_EQ(w.columns(), 6U);
  std::vector<float> whole_w(24);
  file.read(w, std::span(whole_w));
  EXPECT_EQ(whole_w, counting(24));

  std::vector<double> rows(12);
  file.read(w, Rectangle{1, 2, 0, w.columns()}, std::span(rows));
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<double>(6 + i));

  std::vector<float> corner(4);
  file.read(w, Rectangle{2, 2, 3, 2}, std::span(corner));
  EXPECT_EQ(corner, (std::vector<float>{15, 16, 21, 22}));
  std::vector<bf16> columns(4);
  file.read(w, Rectangle{0, w.rows(), 5, 1}, std::span(columns));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<float>(columns[i]), static_cast<float>(5 + 6 * i));

  const TensorInfo& brain = *file.find("x");
  EXPECT_EQ(brain.rows(), 2U);
  std::vector<float> second(3);
  file.read(brain, Rectangle{1, 1, 0, brain.columns()}, std::span(second));
  EXPECT_EQ(second, (std::vector<float>{4, 5, 6}));

  std::vector<double> scalar(1);
  file.read(*file.find("s"), std::span(scalar));
  EXPECT_EQ(scalar[0], 0.1);
  file.read(*file.find("e"), Buffer(nullptr, 0, DType::f32));
}

TEST(SafetensorsFile, ReadsTensorsLargerThanItsScratch) {
  const test::TemporaryFolder folder;
  const std::size_t rows = 300;
  const std::size_t columns = 1000;
  const auto path = folder.write(
      "big.safetensors",
      file_bytes(R"({"w":{"dtype":"F32","shape":[300,1000],"data_offsets":[0,1200000]}})", raw(counting(rows * columns))));
  const File file(path);
  std::vector<double> all(rows * columns);
  file.read(*file.find("w"), std::span(all));
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<double>(i));
  std::vector<double> part(rows * 999);
  file.read(*file.find("w"), Rectangle{0, file.find("w")->rows(), 1, 999}, std::span(part));
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::size_t element = i / 999 * 1000 + i % 999 + 1;
    ASSERT_EQ(part[i], static_cast<double>(element));
  }
}

TEST(SafetensorsFile, RefusesBlocksOutsideTheTensor) {
  const test::TemporaryFolder folder;
  const File file(folder.write("a.safetensors",
                               file_bytes(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", raw(counting(6)))));
  const TensorInfo& w = *file.find("w");
  std::vector<float> into(6);
  const std::size_t huge = ~std::size_t{0};
  for (const Rectangle& block : {Rectangle{1, 2, 0, 3}, Rectangle{0, 2, 1, 3}, Rectangle{huge, 2, 0, 3}, Rectangle{0, huge, 0, 3},
                                 Rectangle{0, 2, huge, 3}, Rectangle{0, 2, 0, huge}, Rectangle{3, 0, 0, 0}}) {
    EXPECT_REFUSED(file.read(w, block, std::span(into)), "a.safetensors", "\"w\"", "don't lie");
  }
  EXPECT_REFUSED(file.read(w, Rectangle{0, 1, 0, w.columns()}, std::span(into)), "memory of 6");
}

TEST(SafetensorsFile, RequiresNameTypeAndShape) {
  const test::TemporaryFolder folder;
  const File file(folder.write("a.safetensors", file_bytes(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                                           R"("i":{"dtype":"I32","shape":[2],"data_offsets":[24,32]}})",
                                                           std::string(32, 'x'))));
  const std::vector<std::size_t> good = {2, 3};
  const std::vector<std::size_t> swapped = {3, 2};
  const std::vector<std::size_t> two = {2};
  EXPECT_EQ(file.require("w", good).name, "w");
  EXPECT_REFUSED(file.require("w", swapped), "a.safetensors", "\"w\"", "expected [3, 2], found [2, 3]");
  EXPECT_REFUSED(file.require("w", two), "expected [2], found [2, 3]");
  EXPECT_REFUSED(file.require("v", good), "\"v\" is missing");
  EXPECT_REFUSED(file.require("i", two), "\"i\": dtype", "found I32");
  std::vector<float> into(2);
  EXPECT_REFUSED(file.read(*file.find("i"), std::span(into)), "I32 can't be read");
}

struct Lie {
  const char* name;
  std::string json;
  std::size_t data_bytes;
  std::vector<std::string> expected;
};

std::ostream& operator<<(std::ostream& stream, const Lie& lie) { return stream << lie.name; }

class LyingHeader : public testing::TestWithParam<Lie> {};

TEST_P(LyingHeader, IsRefusedByFileTensorAndField) {
  const test::TemporaryFolder folder;
  const auto path = folder.write("lie.safetensors", file_bytes(GetParam().json, std::string(GetParam().data_bytes, '\0')));
  const std::string message = test::refusal([&] { const File file(path); });
  EXPECT_NE(message.find("lie.safetensors"), std::string::npos) << message;
  for (const std::string& part : GetParam().expected) EXPECT_NE(message.find(part), std::string::npos) << message;
}

std::string one(const std::string& entry) { return R"({"w":)" + entry + "}"; }

INSTANTIATE_TEST_SUITE_P(
    Safetensors, LyingHeader,
    testing::Values(
        Lie{"Overlap",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12,
            {"\"b\"", "data_offsets", "inside another tensor"}},
        Lie{"SamePlace",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            8,
            {"\"b\"", "inside another tensor"}},
        Lie{"HoleBetween",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
            20,
            {"\"b\"", "after a hole"}},
        Lie{"HoleAtStart", one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})"), 12, {"\"w\"", "after a hole"}},
        Lie{"BytesAtTheEnd", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 9, {"describes 8 bytes", "holds 9"}},
        Lie{"NoTensorsButData", "{}", 3, {"describes 0 bytes", "holds 3"}},
        Lie{"Truncated", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 7, {"\"w\"", "data_offsets", "cut off"}},
        Lie{"EndBeforeBegin", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8, {"\"w\"", "begin ≤ end"}},
        Lie{"OffsetsOverflow",
            one(R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]})"),
            8,
            {"\"w\"", "data_offsets"}},
        Lie{"OffsetsBeyond64Bits",
            one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551624]})"),
            8,
            {"\"w\"", "data_offsets"}},
        Lie{"ShapeOverflows",
            one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
            0,
            {"\"w\"", "shape"}},
        Lie{"ShapeOverflowsBesideAZero",
            one(R"({"dtype":"F32","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]})"),
            0,
            {"\"w\"", "shape"}},
        Lie{"ShapeTooLarge", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8, {"\"w\"", "expected 12 for F32 [3]"}},
        Lie{"WrongDtypeForTheBytes",
            one(R"({"dtype":"F64","shape":[2],"data_offsets":[0,8]})"),
            8,
            {"\"w\"", "expected 16 for F64"}},
        Lie{"UnknownDtype", one(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"), 8, {"\"w\"", "dtype", "F31"}},
        Lie{"DtypeIsANumber", one(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})"), 8, {"\"w\"", "dtype", "32"}},
        Lie{"NegativeShape",
            one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
            8,
            {"\"w\"", "shape", "aren't negative"}},
        Lie{"FractionalShape", one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), 8, {"\"w\"", "shape"}},
        Lie{"ShapeIsANumber", one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), 8, {"\"w\"", "shape"}},
        Lie{"ThreeOffsets",
            one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"),
            8,
            {"\"w\"", "data_offsets", "3 numbers"}},
        Lie{"NegativeOffset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), 8, {"\"w\"", "data_offsets"}},
        Lie{"NoDtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), 8, {"\"w\"", "dtype", "missing"}},
        Lie{"NoShape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), 8, {"\"w\"", "shape", "missing"}},
        Lie{"NoOffsets", one(R"({"dtype":"F32","shape":[2]})"), 8, {"\"w\"", "data_offsets", "missing"}},
        Lie{"EntryIsAnArray", one("[1,2]"), 8, {"\"w\"", "object"}},
        Lie{"DuplicateTensor",
            R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
            16,
            {"\"w\"", "twice"}},
        Lie{"DuplicateField", one(R"({"dtype":"F32","shape":[2],"shape":[4],"data_offsets":[0,8]})"), 8, {"w.shape", "twice"}},
        Lie{"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "strings"}},
        Lie{"MetadataIsAnArray", R"({"__metadata__":["a"]})", 0, {"__metadata__"}},
        Lie{"NaNInShape", one(R"({"dtype":"F32","shape":[NaN],"data_offsets":[0,8]})"), 8, {"w.shape", "finite"}},
        Lie{"DeepNesting", "{\"w\":" + std::string(100000, '['), 8, {"nested"}},
        Lie{"TextBehindANul",
            one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})") + std::string("\0{\"w\":1}", 8),
            8,
            {"expected JSON", "is a NUL"}},
        Lie{"PaddedWithNuls", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})") + std::string(3, '\0'), 8, {"is a NUL"}},
        Lie{"CutJson", R"({"w":{"dtype":"F32")", 8, {"expected JSON"}}, Lie{"NotJson", "hello", 8, {"begin with '{'"}},
        Lie{"EmptyHeader", "", 8, {"begin with '{'"}}),
    [](const testing::TestParamInfo<Lie>& lie) { return lie.param.name; });

TEST(LyingLength, IsRefusedBeforeMemoryIsTaken) {
  const test::TemporaryFolder folder;
  EXPECT_REFUSED(File(folder.write("a", "")), "0 bytes", "at least 8");
  EXPECT_REFUSED(File(folder.write("b", "1234567")), "7 bytes", "at least 8");
  EXPECT_REFUSED(File(folder.write("c", length_word(3) + "{}")), "header length", "expected at most 2");
  EXPECT_REFUSED(File(folder.write("d", length_word(~std::uint64_t{0}) + "{}")), "header length");
  EXPECT_REFUSED(File(folder.write("e", length_word(std::uint64_t{1} << 63) + "{}")), "header length");
  // A sparse file that is as large as its header claims.
  const auto sparse = folder.write("f", length_word(kMaxHeaderBytes + 1) + "{}");
  std::filesystem::resize_file(sparse, kMaxHeaderBytes + 100);
  EXPECT_REFUSED(File(std::filesystem::path(sparse)), "header length", "the format's limit");
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  const test::TemporaryFolder folder;
  EXPECT_REFUSED(File(folder / "none"), "none", "No such file");
  EXPECT_REFUSED(File(folder.path()), "regular file");
}

TEST(SafetensorsFile, RefusesAFileThatIsCutWhileItIsOpen) {
  const test::TemporaryFolder folder;
  const auto path =
      folder.write("a.safetensors", file_bytes(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", raw(counting(6))));
  const File file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  std::vector<float> into(6);
  EXPECT_REFUSED(file.read(*file.find("w"), std::span(into)), "a.safetensors", "4 bytes early");
}

}  // namespace
}  // namespace tsprun::detail::safetensors::safetensors_test
