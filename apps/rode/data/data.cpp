// SPDX-License-Identifier: Apache-2.0
// `rode data` and `rode data info`: what a folder of token shards holds.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "core/file_io.h"
#include "lab/text/token_folder.h"
#include "support.h"

namespace rode::cli {
namespace {

struct FolderArguments {
  std::string folder;
  bool scan = false;
  bool json = false;
};

struct SplitReport {
  std::string name;
  std::size_t shards = 0;
  std::uint64_t tokens = 0;
  std::int64_t largest = -1;  // where scanned
};

SplitReport report_on(const std::string& folder, const std::string& split, bool scan) {
  const lab::TokenFolder opened(folder, split);
  if (!opened.note().empty()) {
    fmt::print(stderr, "rode: note: {}\n", on_terminal(opened.note()));
  }
  SplitReport report{split, opened.shards().size(), opened.tokens(), -1};
  if (!scan) return report;
  for (const lab::TokenShard& shard : opened.shards()) {
    shard.check(0, shard.tokens().size());
    const lab::ShardTokens& tokens = shard.tokens();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      report.largest = std::max<std::int64_t>(report.largest, tokens[i]);
    }
  }
  const auto& info = opened.info();
  if (info && report.largest >= info->vocab_size) {
    throw file_error("data info", folder,
                     fmt::format("split '{}' holds token {}; tokens.json says tokens are below {}; "
                                 "create the folder again with 'rode data tokens'",
                                 split, report.largest, info->vocab_size));
  }
  return report;
}

void run(const FolderArguments& arguments) {
  std::vector<SplitReport> splits;
  for (const char* split : {"train", "valid", "test"}) {
    if (!lab::shard_paths(arguments.folder, split).empty()) {
      splits.push_back(report_on(arguments.folder, split, arguments.scan));
    }
  }
  if (splits.empty()) {
    throw file_error("data info", arguments.folder,
                     "holds no token shard; expected files such as train_000000.bin; make them "
                     "with 'rode data tokens'");
  }
  const auto info = lab::read_token_info(arguments.folder);
  if (arguments.json) {
    Json json = {{"folder", arguments.folder}};
    json["tokenizer"] = info ? Json(info->tokenizer) : Json(nullptr);
    json["vocab_size"] = info ? Json(info->vocab_size) : Json(nullptr);
    json["end_of_text"] = info ? Json(info->end_of_text) : Json(nullptr);
    json["splits"] = Json::object();
    for (const SplitReport& split : splits) {
      Json& entry = json["splits"][split.name];
      entry = {{"shards", split.shards}, {"tokens", split.tokens}};
      if (arguments.scan) entry["largest_token"] = split.largest;
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  if (info) {
    fmt::print("tokenizer {}, vocabulary of {}, end of text {}\n\n", info->tokenizer,
               info->vocab_size, info->end_of_text);
  } else {
    fmt::print("no tokens.json: tokenizer and vocabulary are unknown\n\n");
  }
  std::vector<std::vector<std::string>> rows = {{"split", "shards", "tokens"}};
  if (arguments.scan) rows[0].emplace_back("largest token");
  for (const SplitReport& split : splits) {
    rows.push_back({split.name, fmt::format("{}", split.shards), fmt::format("{}", split.tokens)});
    if (arguments.scan) rows.back().push_back(fmt::format("{}", split.largest));
  }
  fmt::print("{}", format_table(rows));
}

void add_info_command(CLI::App& data) {
  const auto arguments = std::make_shared<FolderArguments>();
  CLI::App* command =
      data.add_subcommand("info", "Check a folder of token shards and print its contents");
  command->add_option("folder", arguments->folder, "folder of token shards")->required();
  command->add_flag("--scan", arguments->scan,
                    "also read all tokens, and check them and their checksums");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer("Example: rode data info data/wiki_en --scan");
  command->callback([=] { arguments_as_usage([&] { run(*arguments); }); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Make, inspect and download training data");
  data->require_subcommand(1);
  add_data_tokens_command(*data);
  add_info_command(*data);
  add_data_get_command(*data);
}

}  // namespace rode::cli
