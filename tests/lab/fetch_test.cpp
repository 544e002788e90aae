// SPDX-License-Identifier: Apache-2.0
// Checksums and the manifest; downloads themselves are tested through the command line.
#include <span>
#include <string>

#include "lab/base/sha256.h"
#include "lab/fetch/dataset.h"
#include "lab/support.h"

namespace rode::lab {
namespace {

std::string hash_of(std::string_view text, std::size_t piece) {
  Sha256 hash;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    hash.update(std::as_bytes(std::span(text.substr(at, piece))));
  }
  return hash.hex();
}

TEST(Sha256, GivesThePublishedValues) {
  // The examples of FIPS 180-4.
  EXPECT_EQ(hash_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 10),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a'), 777),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  for (std::size_t length = 50; length < 140; ++length) {
    const std::string text(length, 'x');
    EXPECT_EQ(hash_of(text, 1), hash_of(text, 1000));
    EXPECT_EQ(hash_of(text, 63), hash_of(text, 65));
  }
}

TEST(Manifest, OfTheBuildHoldsTheDatasets) {
  const auto datasets = builtin_manifest();
  for (const char* name :
       {"cifar-100", "wikitext-103", "fineweb", "fineweb-cache", "fineweb-sample"}) {
    ASSERT_TRUE(datasets.contains(name));
    EXPECT_FALSE(datasets.at(name).licence.empty());
  }
  EXPECT_EQ(datasets.at("cifar-100").files[0].unpack.at("cifar-100-binary/train.bin"), "train.bin");
  EXPECT_EQ(datasets.at("fineweb-sample").tokens->vocab_size, 50257);
  EXPECT_EQ(datasets.at("fineweb-sample").files.size(), 10U);
  // 100 M tokens each: every one of 20,000 steps of 128 sequences of 1024 has its own.
  const auto& fineweb = datasets.at("fineweb").files;
  EXPECT_GE(fineweb.size() * 100'000'000, 20'000U * 128 * 1024);
  EXPECT_EQ(fineweb.front().name, "fineweb_train_000001.bin");
  EXPECT_EQ(fineweb.back().name, "fineweb_train_000027.bin");
}

std::string message(const std::string& text) {
  return error_of([&] { (void)parse_manifest(text, "m.toml"); });
}

TEST(Manifest, RefusesMistakesAndPathsThatLeaveTheFolder) {
  const std::string head = "[a]\ntitle = \"t\"\nlicence = \"l\"\nurl = \"u\"\n";
  const std::string file = "[[a.files]]\nname = \"f\"\n";
  EXPECT_EQ(message(head + file), "");
  EXPECT_MENTIONS(message(head), "has no files");
  EXPECT_MENTIONS(message(head + "[[a.files]]\nname = \"../f\"\n"), "line 6: 'name' is '../f'");
  EXPECT_MENTIONS(message(head + "[[a.files]]\nname = \".f\"\n"),
                  "expected a name of 1 to 100 letters");
  EXPECT_MENTIONS(message(head + file + "unpack = [{from = \"x\", to = \"/etc/x\"}]\n"),
                  "'/etc/x'");
  EXPECT_MENTIONS(message(head + file + "sha256 = \"12\"\n"), "64 lower-case");
  const std::string numbered = "[[a.files]]\nname = \"f_000002.bin\"\n";
  EXPECT_EQ(message(head + numbered + "last = \"f_000003.bin\"\n"), "");
  for (const char* last : {"f_000001.bin", "g_000003.bin", "f_00003.bin", "f_000003.txt", "x"}) {
    EXPECT_MENTIONS(message(head + numbered + "last = \"" + last + "\"\n"),
                    "expected the same name with a larger number");
  }
  EXPECT_MENTIONS(message(head + numbered + "last = \"f_000003.bin\"\nsize = 3\n"), "differ");
  EXPECT_MENTIONS(message(head + file + "sha-256 = \"12\"\n"), "did you mean 'sha256'");
}

}  // namespace
}  // namespace rode::lab
