// SPDX-License-Identifier: Apache-2.0
// Folders of token shards: tokens.json, opening a split, writing one.
#include "lab/text/token_folder.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/base/sealed_json.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "rode-tokens-1";

Error folder_error(const fs::path& folder, std::string_view what) {
  return {ErrorKind::file, kTokenFolder,
          fmt::format("folder '{}': {}", printable(folder.string()), what)};
}

}  // namespace

TokenInfo parse_token_info(std::string_view text, std::string_view source) {
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (unseal(text, json) == Seal::wrong) {
    throw file_error(kTokenFolder, source,
                     "does not match its checksum: it was damaged or edited; restore it from a "
                     "copy, remove the member 'checksum' from what was edited, or make the folder "
                     "again with 'rode data tokens'");
  }
  try {
    if (json.at("format").get<std::string>() != kFormat) throw std::runtime_error("format");
    TokenInfo info;
    info.tokenizer = json.at("tokenizer").get<std::string>();
    info.vocab_size = json.at("vocab_size").get<std::int64_t>();
    info.end_of_text = json.at("end_of_text").get<std::int64_t>();
    for (const auto& [name, split] : json.at("splits").items()) {
      info.splits[name] = {split.at("shards").get<std::int64_t>(),
                           split.at("tokens").get<std::int64_t>(), split.value("checksums", false)};
    }
    return info;
  } catch (const std::exception&) {
    throw file_error(kTokenFolder, source,
                     fmt::format("is not a description of tokens; expected format '{}' with "
                                 "tokenizer, vocab_size, end_of_text and splits; make the folder "
                                 "again with 'rode data tokens'",
                                 kFormat));
  }
}

std::optional<TokenInfo> read_token_info(const fs::path& folder) {
  const fs::path path = folder / kTokenInfo;
  if (!fs::exists(path)) return std::nullopt;
  const FileMapping mapping(path, kTokenFolder);
  const auto bytes = mapping.bytes();
  return parse_token_info({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                          path.string());
}

std::string token_info_text(const TokenInfo& info) {
  nlohmann::ordered_json json = {{"format", kFormat},
                                 {"tokenizer", info.tokenizer},
                                 {"vocab_size", info.vocab_size},
                                 {"end_of_text", info.end_of_text},
                                 {"splits", nlohmann::ordered_json::object()}};
  for (const auto& [name, split] : info.splits) {
    json["splits"][name] = {
        {"shards", split.shards}, {"tokens", split.tokens}, {"checksums", split.checksums}};
  }
  return sealed(std::move(json), 2) + "\n";
}

void write_token_info(const fs::path& folder, const TokenInfo& info) {
  const std::string text = token_info_text(info);
  AtomicFile file(folder / kTokenInfo, kTokenFolder);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string split_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  for (std::size_t at = 0; at < stem.size();) {
    const std::size_t end = std::min(stem.find_first_of("_-.", at), stem.size());
    std::string word = stem.substr(at, end - at);
    if (word == "train" || word == "test") return word;
    if (word == "val" || word == "valid" || word == "validation") return "valid";
    at = end + 1;
  }
  return {};
}

std::vector<fs::path> shard_paths(const fs::path& folder, const std::string& split) {
  std::error_code failed;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".bin" && split_of(path) == split) paths.push_back(path);
  }
  if (failed) {
    throw folder_error(folder, fmt::format("cannot be listed ({}); expected a folder of token "
                                           "shards; check the path",
                                           failed.message()));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TokenFolder::TokenFolder(const fs::path& folder, const std::string& split)
    : folder_(folder), info_(read_token_info(folder)) {
  for (const fs::path& path : shard_paths(folder, split)) {
    tokens_ += shards_.emplace_back(path).tokens().size();
  }
  if (shards_.empty()) {
    throw folder_error(folder, fmt::format("holds no shard of the split '{0}'; expected files such "
                                           "as {0}_000000.bin; make them with 'rode data tokens "
                                           "--split {0}'",
                                           split));
  }
  note_ = fmt::format(
      "folder '{}': the shards of '{}' have no checksums; damage to them would not be noticed; "
      "shards that 'rode data tokens' makes have checksums",
      printable(folder.string()), split);
  if (!info_) return;  // shards from elsewhere have no tokens.json
  const auto recorded = info_->splits.find(split);
  const auto shards = static_cast<std::int64_t>(shards_.size());
  if (recorded == info_->splits.end()) {
    throw folder_error(
        folder, fmt::format("{} shards of '{}' exist, but {} does not record the split: writing it "
                            "was interrupted; make it again with 'rode data tokens --overwrite'",
                            shards, split, kTokenInfo));
  }
  const SplitInfo& expected = recorded->second;
  if (expected.shards != shards || expected.tokens != static_cast<std::int64_t>(tokens_)) {
    throw folder_error(
        folder, fmt::format("split '{}' has {} shards of {} tokens; {} records {} "
                            "of {}; restore the missing files or make them again",
                            split, shards, tokens_, kTokenInfo, expected.shards, expected.tokens));
  }
  if (expected.checksums) protect_shards();
}

void TokenFolder::protect_shards() {
  auto checksums = read_shard_checksums(folder_);
  for (TokenShard& shard : shards_) {
    const std::string name = shard.path().filename().string();
    if (!checksums || !checksums->contains(name)) {
      throw folder_error(folder_,
                         fmt::format("'{}' {}; expected the checksums of '{}', as {} says; restore "
                                     "the file, or make the folder again with 'rode data tokens'",
                                     kShardChecksums, checksums ? "lacks a shard" : "is missing",
                                     printable(name), kTokenInfo));
    }
    shard.protect(std::move(checksums->at(name)));
  }
  note_.clear();
}

void TokenFolder::require_vocab(std::int64_t model_vocab_size) const {
  if (!info_ || info_->vocab_size <= model_vocab_size) return;
  throw folder_error(
      folder_,
      fmt::format(
          "its tokens come from '{}' with {} entries, but the model's vocabulary has {}; expected "
          "a model at least as large; set vocab_size = {} or tokenise the text for this model",
          info_->tokenizer, info_->vocab_size, model_vocab_size, info_->vocab_size));
}

}  // namespace rode::lab
