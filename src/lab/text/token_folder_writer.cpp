// SPDX-License-Identifier: Apache-2.0
// Writing a split: shards in a temporary folder as they fill, moved there when all are complete.
#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "lab/text/token_folder.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

void check(const TokenInfo& info, const TokenFolderWriter::Options& options) {
  if (info.vocab_size < 1 || info.vocab_size > kMaxVocabSize) {
    throw Error(ErrorKind::invalid_argument, kTokenFolder,
                fmt::format("a vocabulary of {} entries; expected 1 to {}", info.vocab_size,
                            kMaxVocabSize));
  }
  if (options.split != "train" && options.split != "valid" && options.split != "test") {
    throw Error(ErrorKind::invalid_argument, kTokenFolder,
                fmt::format("split '{}'; expected train, valid or test", options.split));
  }
  if (options.shard_tokens < 1 || options.shard_tokens > kMaxShardTokens) {
    throw Error(ErrorKind::invalid_argument, kTokenFolder,
                fmt::format("shards of {} tokens; expected 1 to {}", options.shard_tokens,
                            kMaxShardTokens));
  }
}

// What a call of the file system refused, as an Error.
template <class Work>
void on_disk(const fs::path& folder, Work&& work) {
  try {
    work();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::file, kTokenFolder,
                fmt::format("folder '{}' cannot be changed ({}); check its permissions and the "
                            "disk, or choose another folder",
                            printable(folder.string()), error.code().message()));
  }
}

bool is_only_split(const fs::path& folder, const std::string& split) {
  return std::ranges::all_of(std::array{"train", "valid", "test"}, [&](const char* other) {
    return other == split || shard_paths(folder, other).empty();
  });
}

// Makes the folder; the first of its parents that had to be made, empty where it was there.
fs::path make_folder(const fs::path& folder) {
  fs::path first;
  std::error_code ignored;
  for (fs::path at = fs::absolute(folder); !fs::exists(at, ignored); at = at.parent_path()) {
    first = at;
    if (!at.has_relative_path()) break;
  }
  on_disk(folder, [&] { fs::create_directories(folder); });
  return first;
}

}  // namespace

TokenFolderWriter::TokenFolderWriter(const fs::path& folder, const TokenInfo& info,
                                     const Options& options)
    : folder_(folder), info_(info), options_(options) {
  check(info, options);
  const std::string where = printable(folder.string());
  std::error_code missing;
  if (fs::exists(folder, missing)) {
    // What is known of other splits stays. Where there are none, a damaged description is replaced
    // together with the split.
    const bool replaces = options.overwrite && is_only_split(folder, options.split);
    const auto unless_replaced = [&](auto&& read) -> decltype(read(folder)) {
      try {
        return read(folder);
      } catch (const Error&) {
        if (!replaces) throw;
        return std::nullopt;
      }
    };
    described_ = fs::exists(folder / kTokenInfo);
    others_ = unless_replaced(read_shard_checksums).value_or(std::map<std::string, BlockHashes>{});
    // Two tokenizers in one folder would mix meanings under the same numbers.
    if (auto present = unless_replaced(read_token_info)) {
      if (present->tokenizer != info.tokenizer || present->vocab_size != info.vocab_size) {
        throw Error(ErrorKind::file, kTokenFolder,
                    fmt::format("folder '{}' holds tokens of '{}' with {} entries; expected '{}' "
                                "with {}; choose another folder",
                                where, present->tokenizer, present->vocab_size, info.tokenizer,
                                info.vocab_size));
      }
      info_.splits = std::move(present->splits);
    }
    const auto old = shard_paths(folder, options.split);
    if (!old.empty() && !options.overwrite) {
      throw Error(ErrorKind::file, kTokenFolder,
                  fmt::format("folder '{}' already holds {} shards of the split '{}'; choose "
                              "another folder or --overwrite",
                              where, old.size(), options.split));
    }
  }
  made_ = make_folder(folder);
  const auto stamp = std::chrono::steady_clock::now().time_since_epoch().count();
  stage_ = folder / fmt::format(".rode-{}-{:x}.tmp", ::getpid(), stamp);
  try {
    on_disk(folder, [&] { fs::create_directory(stage_); });
  } catch (...) {
    clean_up();
    throw;
  }
}

TokenFolderWriter::~TokenFolderWriter() {
  shard_.reset();
  clean_up();
}

void TokenFolderWriter::clean_up() {
  std::error_code ignored;
  fs::remove_all(stage_, ignored);
  // Only folders that this object made, and only while they are empty.
  if (made_.empty()) return;
  const fs::path stop = made_.parent_path();
  for (fs::path at = fs::absolute(folder_, ignored); at != stop && fs::remove(at, ignored);) {
    at = at.parent_path();
  }
}

std::string TokenFolderWriter::shard_name(std::int64_t number) const {
  return fmt::format("{}_{:06}.bin", options_.split, number);
}

void TokenFolderWriter::append(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    if (!shard_) {
      shard_.emplace(stage_ / shard_name(written_.shards), layout_for(info_.vocab_size));
    }
    const std::size_t count = std::min(options_.shard_tokens - shard_->size(), tokens.size());
    shard_->append(tokens.first(count));
    tokens = tokens.subspan(count);
    if (shard_->size() == options_.shard_tokens) close_shard();
  }
}

void TokenFolderWriter::close_shard() {
  if (!shard_) return;
  ShardWriter& shard = *shard_;
  checksums_[shard_name(written_.shards)] = shard.close();
  ++written_.shards;
  written_.tokens += static_cast<std::int64_t>(shard.size());
  shard_.reset();
}

SplitInfo TokenFolderWriter::finish() {
  close_shard();
  if (written_.tokens == 0) {
    throw Error(ErrorKind::file, kTokenFolder,
                fmt::format("no tokens for the split '{}': the text is empty; expected at least "
                            "one byte of text; check the input",
                            options_.split));
  }
  // From here to the end the split is not recorded, whatever interrupts: shards without any
  // description would pass for shards from elsewhere.
  const auto old = shard_paths(folder_, options_.split);
  info_.splits.erase(options_.split);
  write_token_info(folder_, info_);
  try {
    place(old);
  } catch (...) {
    if (old.empty()) take_back();
    throw;
  }
  return written_;
}

void TokenFolderWriter::place(const std::vector<fs::path>& old) {
  on_disk(folder_, [&] {
    for (const fs::path& path : old) fs::remove(path);
    for (std::int64_t i = 0; i < written_.shards; ++i) {
      fs::rename(stage_ / shard_name(i), folder_ / shard_name(i));
    }
  });
  for (const fs::path& path : old) others_.erase(path.filename().string());
  for (const auto& [name, hashes] : checksums_) others_[name] = hashes;
  write_shard_checksums(folder_, others_);
  written_.checksums = true;
  info_.splits[options_.split] = written_;
  write_token_info(folder_, info_);
}

void TokenFolderWriter::take_back() {
  std::error_code ignored;
  for (std::int64_t i = 0; i < written_.shards; ++i) fs::remove(folder_ / shard_name(i), ignored);
  if (!described_) fs::remove(folder_ / kTokenInfo, ignored);
}

}  // namespace rode::lab
