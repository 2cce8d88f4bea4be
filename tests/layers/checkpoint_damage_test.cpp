// Checkpoints that are damaged or lie: passed over, with a line that names the file and the field.
#include "layers/checkpoints/checkpoint.h"
#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/io/digest.h"
#include "layers/io/file.h"
#include "tests/layers/checkpoint_support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::checkpoint_damage_test {
namespace {

using nlohmann::json;

std::string hex_of(std::string_view bytes) { return hexadecimal(digest(std::as_bytes(std::span(bytes)))); }

TEST(Digest, IsThePublishedXxh3) {
  // Of nothing, and of one letter: as `xxhsum -H2` prints them.
  EXPECT_EQ(hex_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hex_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_TRUE(is_hexadecimal_digest(hex_of("")));
  EXPECT_FALSE(is_hexadecimal_digest("99AA06D3014798D86001C324468D497F"));
  EXPECT_FALSE(is_hexadecimal_digest("99aa"));
}

TEST(Digest, OfALongFileIsThatOfItsBlocksDigests) {
  const test::TemporaryFolder folder;
  std::string bytes(kDigestBlockBytes + 12345, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13U);
  const auto digest_of = [&](const std::string& text) {
    const std::filesystem::path path = folder.write("file", text);
    return hexadecimal(digest_file(file::open_to_read(path), path, text.size()));
  };
  const std::string first = bytes.substr(0, kDigestBlockBytes);
  EXPECT_EQ(digest_of(first), hex_of(first));
  const std::array<Digest, 2> both = {digest(std::as_bytes(std::span(first))),
                                      digest(std::as_bytes(std::span(bytes).subspan(kDigestBlockBytes)))};
  EXPECT_EQ(digest_of(bytes), hexadecimal(digest(std::as_bytes(std::span(both)))));
  EXPECT_EQ(digest_of(""), hex_of(""));
}

struct Damage {
  std::string what;
  std::string file;
  std::function<std::string(std::string)> of;
  std::string expected;
};

TEST(CheckpointDamage, IsPassedOverByNameAndOnlyByName) {
  const auto flip = [](std::string bytes) {
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    return bytes;
  };
  const auto cut = [](const std::string& bytes) { return bytes.substr(0, bytes.size() - 1); };
  const auto grow = [](const std::string& bytes) { return bytes + '\0'; };
  std::vector<Damage> damages;
  for (const char* file : {"config.json", "model.safetensors", "optimizer.m.safetensors", "optimizer.v.safetensors",
                           "optimizer.master.safetensors"}) {
    damages.push_back({"a bit", file, flip, "checksum (XXH3-128)"});
    damages.push_back({"cut", file, cut, "manifest.json expects"});
    damages.push_back({"longer", file, grow, "manifest.json expects"});
    damages.push_back({"missing", file, nullptr, "No such file"});
  }
  damages.push_back({"missing", "manifest.json", nullptr, "No such file"});
  damages.push_back({"empty", "manifest.json", [](const std::string&) { return ""; }, "expected JSON"});
  damages.push_back(
      {"cut", "manifest.json", [](const std::string& text) { return text.substr(0, text.size() / 2); }, "expected JSON"});
  damages.push_back({"a digit", "manifest.json",
                     [](std::string text) {
                       text[text.find("987654321")] = '8';
                       return text;
                     },
                     "field \"checksum\""});
  damages.push_back({"a sea of zeros", "manifest.json", [](const std::string&) { return std::string(3 << 20, '\0'); },
                     "3145728 bytes; expected a manifest of at most"});

  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10, DType::bf16), 1);
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.file + ": " + damage.what);
    std::filesystem::remove_all(folder / "step-000020");
    std::filesystem::copy(folder / "step-000010", folder / "whole");
    // A checkpoint of step 20 as a save would write it: the same files, another step.
    Manifest manifest = parse_manifest(test::read_all(folder / "whole/manifest.json"), "manifest");
    manifest.state.step = 20;
    folder.write("whole/manifest.json", manifest_json(manifest));
    std::filesystem::rename(folder / "whole", folder / "step-000020");
    EXPECT_EQ(search_checkpoints(folder.path()).found->state.step, 20U);

    const std::string file = "step-000020/" + damage.file;
    const std::string bytes = test::read_all(folder / file);
    std::filesystem::remove(folder / file);
    if (damage.of) folder.write(file, damage.of(bytes));

    const CheckpointSearch search = search_checkpoints(folder.path());
    ASSERT_TRUE(search.found);
    EXPECT_EQ(search.found->state.step, 10U);
    ASSERT_EQ(search.skipped.size(), 1U);
    EXPECT_EQ(search.skipped[0].find((folder / file).string()), 0U) << search.skipped[0];
    EXPECT_NE(search.skipped[0].find(damage.expected), std::string::npos) << search.skipped[0];
    EXPECT_EQ(search.skipped[0].find('\n'), std::string::npos) << search.skipped[0];
  }

  // With nothing else there the line is the error's.
  std::filesystem::remove_all(folder / "step-000010");
  std::vector<std::string> skipped;
  EXPECT_REFUSED(find_checkpoint(folder.path(), skipped), "holds no whole checkpoint", "step-000020/manifest.json");
}

TEST(CheckpointDamage, FilesThatAgreeWithTheirChecksumsButNotWithTheModelArePassedOver) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 1);
  const std::string manifest_text = test::read_all(folder / "step-000010/manifest.json");
  const auto put = [&](std::size_t index, const std::string& bytes) {
    Manifest manifest = parse_manifest(manifest_text, "manifest");
    folder.write("step-000010/" + manifest.files[index].name, bytes);
    manifest.files[index].bytes = bytes.size();
    manifest.files[index].checksum = hex_of(bytes);
    folder.write("step-000010/manifest.json", manifest_json(manifest));
  };
  const std::string config = test::read_all(folder / "step-000010/config.json");
  put(0, "{\"hidden_size\": NaN}");
  EXPECT_REFUSED(open_checkpoint(folder / "step-000010", true), "config.json", "hidden_size", "finite");
  put(0, config);
  std::string tensors = test::read_all(folder / "step-000010/model.safetensors");
  const std::string renamed = std::string(tensors).replace(tensors.find("embed_tokens"), 12, "EMBED_tokens");
  put(1, renamed);
  EXPECT_REFUSED(open_checkpoint(folder / "step-000010", true), "model.safetensors", "model.embed_tokens.weight", "missing");
  put(1, std::string(tensors).replace(0, 8, 8, '\xff'));
  EXPECT_REFUSED(open_checkpoint(folder / "step-000010", true), "model.safetensors", "header length");
  put(1, tensors);
  EXPECT_EQ(open_checkpoint(folder / "step-000010", true).state.step, 10U);
}

TEST(CheckpointDamage, AFolderUnderTheNameOfAnotherStepIsPassedOver) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 1);
  std::filesystem::rename(folder / "step-000010", folder / "step-000011");
  const CheckpointSearch search = search_checkpoints(folder.path());
  EXPECT_FALSE(search.found);
  ASSERT_EQ(search.skipped.size(), 1U);
  EXPECT_NE(search.skipped[0].find("field \"state.step\": expected 11, as the folder's name says, found 10"), std::string::npos);
}

// --- manifests ---------------------------------------------------------------------------------------------------------------

Manifest good_manifest() {
  Manifest manifest;
  manifest.state = test::of_run('a', test::checkpoint_state(120, DType::bf16));
  for (const std::string& name : checkpoint_files(DType::bf16)) manifest.files.push_back({name, 1000, hex_of(name)});
  return manifest;
}

TEST(Manifest, SurvivesBeingWrittenAndRead) {
  const Manifest manifest = good_manifest();
  const std::string text = manifest_json(manifest);
  const Manifest again = parse_manifest(text, "manifest.json");
  EXPECT_EQ(again.state, manifest.state);
  EXPECT_EQ(again.files, manifest.files);
  EXPECT_EQ(manifest_json(again), text);
}

TEST(Manifest, ThatLiesIsRefusedByField) {
  struct Lie {
    const char* pointer;
    json value;  // discarded: the field is taken away
    std::string field;
    std::string expected;
  };
  const json gone(json::value_t::discarded);
  const std::vector<Lie> lies = {
      {"/format", "safetensors", "format", "expected \"tsprun checkpoint\", found \"safetensors\""},
      {"/format", gone, "format", "is missing"},
      {"/version", 3, "version", "expected 1 to 2, found 3"},
      {"/version", "1", "version", "expected an integer"},
      {"/run", gone, "run", "is missing"},
      {"/run", "me", "run", "32 hexadecimal digits"},
      {"/run", 7, "run", "expected text"},
      {"/state", json::array(), "state", "expected an object, found an array"},
      {"/state/step", -1, "state.step", "expected an integer from 0"},
      {"/state/step", 1.5, "state.step", "expected an integer from 0"},
      {"/state/step", 18446744073709551615U, "state.step", "expected an integer from 0"},
      {"/state/step", gone, "state.step", "is missing"},
      {"/state/seed", "0", "state.seed", "expected an integer"},
      {"/state/dtype", "f16", "state.dtype", "expected f32, f64 or bf16, found \"f16\""},
      {"/state/dtype", "bytes", "state.dtype", "expected f32, f64 or bf16"},
      {"/state/loss", 1.0, "state.loss", "is not known"},
      {"/data/batch", 0, "data.batch", "expected an integer from 1"},
      {"/data/sequence", 1e300, "data.sequence", "expected an integer from 1"},
      {"/data/epochs", -1, "data.epochs", "expected a finite number of at least 0"},
      {"/data/tokens", gone, "data.tokens", "is missing"},
      {"/update/learning_rate", -1e-3, "update.learning_rate", "expected a finite number of at least 0"},
      {"/update/learning_rate", nullptr, "update.learning_rate", "expected a finite number of at least 0, found null"},
      {"/update/beta1", 1.0, "update.beta1", "expected a number of at least 0 and below 1"},
      {"/update/beta2", gone, "update.beta2", "is missing"},
      {"/update/clip", true, "update.clip", "expected a finite number"},
      {"/update/warmup", -3, "update.warmup", "expected an integer"},
      {"/update/schedule", 1, "update.schedule", "expected an object"},
      {"/update/schedule/name", "constant", "update.schedule.name", "expected linear, cosine, wsd, found \"constant\""},
      {"/update/schedule/name", "step", "update.schedule.name", "expected linear, cosine, wsd, found \"step\""},
      {"/update/schedule/least_rate", -1, "update.schedule.least_rate", "expected a finite number of at least 0"},
      {"/update/schedule/decay_steps", gone, "update.schedule.decay_steps", "is missing"},
      {"/update/schedule/steps", 0, "update.schedule.steps", "expected an integer from 1"},
      {"/world/ranks", 0, "world.ranks", "expected an integer from 1"},
      {"/world/ranks", 3, "world.ranks", "expected 4, which is the product of the degrees in world.layout, found 3"},
      {"/world/layout", std::string(300, 'x'), "world.layout", "expected text of at most 200 bytes"},
      {"/world/layout", "ep=4", "world.layout", "ep=4: there is no axis 'ep'"},
      {"/world/layout", "tsp=2,sp=2", "world.layout", "tsp holds the sequence already"},
      {"/world/tp", "ring", "world.tp", "expected plain, sequence, found"},
      {"/world/sp", 7, "world.sp", "expected text"},
      {"/world/kernels", 3, "world.kernels", "expected text"},
      {"/files", json::object(), "files", "expected an array, found an object"},
      {"/files", json::array(), "files", "file \"config.json\" is missing"},
      {"/files/4", gone, "files", "file \"optimizer.master.safetensors\" is missing"},
      {"/files/5", json{{"name", "optimizer.x.safetensors"}, {"bytes", 0}, {"xxh3_128", hex_of("")}}, "files[5].name",
       "the name of another file"},
      {"/files/1", 7, "files[1]", "expected an object, found 7"},
      {"/files/1/name", "../../../etc/passwd", "files[1].name", "expected \"model.safetensors\", found \"../../../etc/passwd\""},
      {"/files/1/name", "/etc/passwd", "files[1].name", "expected \"model.safetensors\""},
      {"/files/1/name", "config.json", "files[1].name", "expected \"model.safetensors\", found \"config.json\""},
      {"/files/1/bytes", -1, "files[1].bytes", "expected an integer from 0"},
      {"/files/1/bytes", 18446744073709551615U, "files[1].bytes", "expected an integer from 0"},
      {"/files/1/xxh3_128", std::string(32, 'G'), "files[1].xxh3_128", "expected 32 hexadecimal digits"},
      {"/files/1/xxh3_128", gone, "files[1].xxh3_128", "is missing"},
      {"/files/1/mode", 0644, "files[1].mode", "is not known"},
      {"/extra", 1, "extra", "is not known"},
      {"/checksum", std::string(32, '0'), "checksum", "as its other fields have"},
      {"/checksum", gone, "checksum", "is missing"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(fmt::format("{} = {}", lie.pointer, lie.value.is_discarded() ? "nothing" : lie.value.dump()));
    json object = json::parse(manifest_json(good_manifest()));
    const json::json_pointer at(lie.pointer);
    if (!lie.value.is_discarded()) {
      if (at.back() == "5") object["files"].push_back(lie.value);
      else object[at] = lie.value;
    } else if (object[at.parent_pointer()].is_array()) {
      object[at.parent_pointer()].erase(std::stoul(at.back()));
    } else {
      object[at.parent_pointer()].erase(at.back());
    }
    // The liar knows how to seal.
    if (at.back() != "checksum") {
      object.erase("checksum");
      object["checksum"] = hex_of(object.dump());
    }
    EXPECT_REFUSED(parse_manifest(object.dump(), "DIR/manifest.json"), "DIR/manifest.json: field \"" + lie.field + "\"",
                   lie.expected);
  }
}

TEST(Manifest, OfTheFirstVersionIsReadAsARunWithoutIdentity) {
  json object = json::parse(manifest_json(good_manifest()));
  object["version"] = 1;
  object.erase("run");
  object.erase("checksum");
  object["checksum"] = hex_of(object.dump());
  const Manifest manifest = parse_manifest(object.dump(), "m");
  EXPECT_TRUE(manifest.state.run.empty());
  CheckpointState expected = good_manifest().state;
  expected.run.clear();
  EXPECT_EQ(manifest.state, expected);
}

TEST(Manifest, ThatIsNoGoodJsonIsRefused) {
  const std::string good = manifest_json(good_manifest());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_REFUSED(parse_manifest("", "m"), "m: expected JSON");
  EXPECT_REFUSED(parse_manifest(good + std::string("\0", 1), "m"), "m: expected JSON", "is a NUL");
  EXPECT_REFUSED(parse_manifest(good + std::string("\0{}", 3), "m"), "m: expected JSON", "is a NUL");
  EXPECT_REFUSED(parse_manifest("[]", "m"), "m: expected a JSON object, found an array");
  EXPECT_REFUSED(parse_manifest(with("0.95", "NaN"), "m"), "update.beta2", "expected a finite number, found NaN");
  EXPECT_REFUSED(parse_manifest(with("0.95", "1e999"), "m"), "update.beta2", "expected a finite number");
  EXPECT_REFUSED(parse_manifest(with("\"seed\"", "\"step\": 7, \"seed\""), "m"), "field \"state.step\" is given twice");
  EXPECT_REFUSED(parse_manifest(with("\"tp=2,sp=2\"", "\"tp=\xff\""), "m"), "m: ");
  EXPECT_REFUSED(parse_manifest(with("\"tp=2,sp=2\"", "\"tp=2,\\nsp=2\\u0000\""), "m"), "checksum");
  EXPECT_REFUSED(parse_manifest(std::string(100'000, '['), "m"), "nested deeper");
  for (std::size_t end = 0; end + 3 < good.size(); end += 7) EXPECT_REFUSED(parse_manifest(good.substr(0, end), "m"), "m: ");
}

}  // namespace
}  // namespace tsprun::detail::checkpoint_damage_test
