// SPDX-License-Identifier: Apache-2.0
// Writing a split: shards as they fill, tokens.json when all are there.
#include <system_error>

#include <fmt/format.h>

#include "lab/data/token_folder.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperation = "token folder";

}  // namespace

TokenFolderWriter::TokenFolderWriter(const fs::path& folder, const TokenInfo& info,
                                     const Options& options)
    : folder_(folder), info_(info), options_(options) {
  const std::string where = printable(folder.string());
  if (info.vocab_size < 1 || info.vocab_size > kMaxVocabSize) {
    throw Error(ErrorKind::invalid_argument, kOperation,
                fmt::format("a vocabulary of {} entries; expected 1 to {} (shards hold uint16)",
                            info.vocab_size, kMaxVocabSize));
  }
  if (split_of(options.split + "_000000.bin") != options.split) {
    throw Error(ErrorKind::invalid_argument, kOperation,
                fmt::format("split '{}'; expected train, valid or test", options.split));
  }
  if (options.shard_tokens == 0) {
    throw Error(ErrorKind::invalid_argument, kOperation, "shards of 0 tokens; expected 1 or more");
  }
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error(ErrorKind::file, kOperation,
                fmt::format("folder '{}' cannot be made ({}); choose another folder", where,
                            failed.message()));
  }
  // Two tokenizers in one folder would mix meanings under the same numbers.
  if (auto present = read_token_info(folder)) {
    if (present->tokenizer != info.tokenizer || present->vocab_size != info.vocab_size) {
      throw Error(ErrorKind::file, kOperation,
                  fmt::format("folder '{}' holds tokens of '{}' with {} entries; expected '{}' "
                              "with {}; choose another folder",
                              where, present->tokenizer, present->vocab_size, info.tokenizer,
                              info.vocab_size));
    }
    info_.splits = std::move(present->splits);
  }
  const auto old = shard_paths(folder, options.split);
  if (!old.empty() && !options.overwrite) {
    throw Error(ErrorKind::file, kOperation,
                fmt::format("folder '{}' already holds {} shards of the split '{}'; choose another "
                            "folder or --overwrite",
                            where, old.size(), options.split));
  }
  checksums_ = read_shard_checksums(folder).value_or(std::map<std::string, BlockHashes>{});
  for (const fs::path& path : old) checksums_.erase(path.filename().string());
  // From here to finish() the split is not recorded, whatever interrupts.
  info_.splits.erase(options.split);
  write_token_info(folder, info_);
  for (const fs::path& path : old) fs::remove(path);
}

void TokenFolderWriter::append(std::span<const std::uint16_t> tokens) {
  while (!tokens.empty()) {
    const std::size_t room = options_.shard_tokens - buffer_.size();
    const std::size_t count = std::min(room, tokens.size());
    buffer_.insert(buffer_.end(), tokens.begin(),
                   tokens.begin() + static_cast<std::ptrdiff_t>(count));
    tokens = tokens.subspan(count);
    if (buffer_.size() == options_.shard_tokens) flush();
  }
}

void TokenFolderWriter::flush() {
  const std::string name = fmt::format("{}_{:06}.bin", options_.split, written_.shards);
  checksums_[name] = write_shard(folder_ / name, buffer_);
  ++written_.shards;
  written_.tokens += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

SplitInfo TokenFolderWriter::finish() {
  if (!buffer_.empty() || written_.shards == 0) flush();
  write_shard_checksums(folder_, checksums_);
  written_.checksums = true;
  info_.splits[options_.split] = written_;
  write_token_info(folder_, info_);
  return written_;
}

}  // namespace rode::lab
