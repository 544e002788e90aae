// SPDX-License-Identifier: Apache-2.0
// `rode data tokens`: text to token shards.
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "core/file_io.h"
#include "lab/run/interrupt.h"
#include "lab/text/document_encoder.h"
#include "lab/text/text_reader.h"
#include "lab/text/token_folder.h"
#include "lab/text/tokenizer.h"
#include "support.h"
#include "validators.h"

namespace rode::cli {
namespace {

struct TokensArguments {
  std::vector<std::string> inputs;
  std::string tokenizer = "gpt2";
  std::string vocabulary;
  std::string out;
  std::string split = "train";
  std::string documents = "file";
  std::size_t shard_tokens = 100'000'000;
  bool overwrite = false;
  bool json = false;
};

void note(std::string_view text) { fmt::print(stderr, "rode: note: {}\n", on_terminal(text)); }

void run(const TokensArguments& arguments) {
  if (arguments.tokenizer == "gpt2" && arguments.vocabulary.empty()) {
    throw UsageError("--tokenizer gpt2 needs --vocab, the folder of encoder.json and vocab.bpe");
  }
  const auto start = std::chrono::steady_clock::now();
  const lab::DocumentRule rule = lab::document_rule(arguments.documents);
  const auto tokenizer = lab::make_tokenizer(arguments.tokenizer, arguments.vocabulary);
  for (const std::string& line : tokenizer->notes()) note(line);
  // Before anything is written: a missing input must not leave half a folder.
  for (const std::string& input : arguments.inputs) const FileMapping readable(input, "read text");
  lab::TokenInfo info;
  info.tokenizer = tokenizer->name();
  info.vocab_size = tokenizer->vocab_size();
  info.end_of_text = tokenizer->end_of_text();
  const lab::InterruptGuard interrupt;  // so that a stop leaves no files either
  lab::TokenFolderWriter writer(arguments.out, info,
                                {arguments.split, arguments.shard_tokens, arguments.overwrite});

  lab::DocumentEncoder encoder(*tokenizer,
                               [&](std::span<const lab::Token> tokens) { writer.append(tokens); });
  lab::DocumentSplitter splitter(
      rule, [&](std::string_view text, bool begins) { encoder.push(text, begins); });
  for (const std::string& input : arguments.inputs) {
    const std::uint64_t before = encoder.bytes();
    lab::read_text(input, [&](std::string_view text) {
      if (lab::InterruptGuard::requested()) {
        throw Error(ErrorKind::unsupported, "data tokens",
                    fmt::format("stopped while reading '{}'; nothing was written", input));
      }
      splitter.push(text);
    });
    splitter.finish();
    if (encoder.bytes() == before) note(fmt::format("input '{}' is empty", input));
  }
  encoder.finish();
  const lab::SplitInfo written = writer.finish();
  const std::uint64_t bytes = encoder.bytes();
  const std::uint64_t documents = encoder.documents();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double rate = static_cast<double>(bytes) / 1e6 / elapsed.count();
  if (arguments.json) {
    const Json json = {
        {"out", arguments.out},          {"split", arguments.split}, {"tokenizer", info.tokenizer},
        {"vocab_size", info.vocab_size}, {"bytes", bytes},           {"documents", documents},
        {"tokens", written.tokens},      {"shards", written.shards}, {"seconds", elapsed.count()}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}: {} tokens of {} documents ({} bytes) in {} shards, {:.1f} MB/s\n", arguments.out,
             written.tokens, documents, bytes, written.shards, rate);
}

}  // namespace

void add_data_tokens_command(CLI::App& data) {
  const auto arguments = std::make_shared<TokensArguments>();
  CLI::App* command = data.add_subcommand("tokens",
                                          "Make token shards (in llm.c's formats) from text, with "
                                          "an end-of-text token before each document");
  command
      ->add_option("--input", arguments->inputs,
                   "text files, plain or compressed (.xz, .gz, .zst, .bz2)")
      ->required();
  command->add_option("--tokenizer", arguments->tokenizer, "tokenizer: gpt2 or bytes")
      ->capture_default_str();
  command->add_option("--vocab", arguments->vocabulary,
                      "folder of GPT-2's encoder.json and vocab.bpe");
  command->add_option("--out", arguments->out, "folder for the shards and tokens.json")->required();
  command->add_option("--split", arguments->split, "split to write: train, valid or test")
      ->capture_default_str();
  command
      ->add_option("--documents", arguments->documents,
                   "where a document ends: file (at the end of a file), blank (at a blank line) or "
                   "heading (before '= Title =')")
      ->capture_default_str();
  command
      ->add_option("--shard-tokens", arguments->shard_tokens, "maximum number of tokens per shard")
      ->capture_default_str()
      ->check(whole_number(1, lab::kMaxShardTokens));
  command->add_flag("--overwrite", arguments->overwrite, "replace the split's existing shards");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(
      "Example: rode data tokens --input train.txt --documents heading --vocab VOCAB --out "
      "data/text");
  command->callback([=] { arguments_as_usage([&] { run(*arguments); }); });
}

}  // namespace rode::cli
