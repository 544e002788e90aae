// SPDX-License-Identifier: Apache-2.0
// Fuzzes token shards and tokens.json: any bytes give tokens or an Error, and tokens that were read
// are written back identically.
#include <cstring>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "fuzz/fuzz_target.h"
#include "fuzz/require.h"
#include "lab/base/sealed_json.h"
#include "lab/text/token_folder.h"

namespace {

namespace lab = rode::lab;
using fuzz::require;
using fuzz::succeeds;

void check_shard(std::span<const std::byte> bytes) {
  succeeds([&] {
    const auto tokens = lab::parse_shard(bytes, "fuzz");
    require(lab::kShardHeaderBytes + tokens.size_bytes() == bytes.size(), "bytes are left over");
    volatile std::uint64_t sum = 0;  // keeps the loads
    for (std::size_t i = 0; i < tokens.size(); ++i) sum = sum + tokens[i];
  });
}

void check_info(std::string_view text) {
  lab::TokenInfo info;
  if (!succeeds([&] { info = lab::parse_token_info(text, "fuzz"); })) return;
  succeeds([&] {
    const lab::TokenInfo again = lab::parse_token_info(lab::token_info_text(info), "again");
    require(again.tokenizer == info.tokenizer && again.vocab_size == info.vocab_size &&
                again.end_of_text == info.end_of_text && again.splits.size() == info.splits.size(),
            "tokens.json changed by the round trip");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Mutations of one kind of seed soon stop being the other kind.
  check_shard(std::as_bytes(std::span(data, size)));
  check_info({reinterpret_cast<const char*>(data), size});
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const lab::ShardLayout& layout : {lab::kNarrowShard, lab::kWideShard}) {
    for (const std::int32_t count : {0, 1, 7, 300}) {
      std::string shard(lab::kShardHeaderBytes, '\0');
      const std::int32_t header[] = {layout.magic, layout.version, count};
      std::memcpy(shard.data(), header, sizeof header);
      const auto bytes = static_cast<std::int32_t>(layout.width) * count;
      for (std::int32_t i = 0; i < bytes; ++i) shard += static_cast<char>(i);
      seeds.push_back(shard);
    }
  }
  lab::TokenInfo info;
  info.tokenizer = "gpt2";
  info.vocab_size = 50257;
  info.end_of_text = 50256;
  // Also without its checksum: mutations must reach the parser after it.
  const auto add_info = [&] {
    auto json = nlohmann::ordered_json::parse(lab::token_info_text(info));
    seeds.push_back(json.dump(2));
    json.erase(lab::kChecksumMember);
    seeds.push_back(json.dump(2));
  };
  add_info();
  info.splits["train"] = {3, 1000};
  info.splits["valid"] = {1, 10};
  add_info();
  return seeds;
}
