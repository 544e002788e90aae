// SPDX-License-Identifier: Apache-2.0
// `rode data get`: downloads a dataset and checks it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "commands.h"
#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/fetch/dataset.h"
#include "lab/task/sources.h"
#include "support.h"

namespace rode::cli {
namespace {

struct GetArguments {
  std::string name;
  std::string out;
  std::string mirror;
  std::string manifest;
  bool json = false;
};

std::map<std::string, lab::Dataset> datasets(const GetArguments& arguments) {
  if (arguments.manifest.empty()) return lab::builtin_manifest();
  const FileMapping mapping(arguments.manifest, "datasets");
  const auto bytes = mapping.bytes();
  return lab::parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                             arguments.manifest);
}

void print_list(const std::map<std::string, lab::Dataset>& known, bool as_json) {
  if (as_json) {
    Json list = Json::array();
    for (const auto& [name, dataset] : known) {
      list.push_back({{"name", name},
                      {"title", dataset.title},
                      {"licence", dataset.licence},
                      {"url", dataset.url},
                      {"files", dataset.files.size()}});
    }
    fmt::print("{}\n", Json{{"datasets", list}}.dump(2));
    return;
  }
  for (const auto& [name, dataset] : known) {
    fmt::print("{}\n    {}\n    licence: {}; {} file(s) from {}\n", name, dataset.title,
               dataset.licence, dataset.files.size(), dataset.url);
  }
}

std::string mirror_of(const GetArguments& arguments) {
  if (!arguments.mirror.empty()) return arguments.mirror;
  const char* mirror = std::getenv("RODE_DATA_MIRROR");  // NOLINT(concurrency-mt-unsafe)
  return mirror == nullptr ? "" : mirror;
}

// One line that overwrites itself, at most every megabyte.
class DownloadLine {
 public:
  void show(std::string_view name, std::uint64_t now, std::uint64_t total) {
    if (::isatty(STDERR_FILENO) == 0 || now < last_ + 1'000'000) return;
    last_ = now;
    const double share =
        total > 0 ? 100.0 * static_cast<double>(now) / static_cast<double>(total) : 0.0;
    fmt::print(stderr, "\r{}: {} MB ({:.0f} %) ", name, now / 1'000'000, share);
    shown_ = true;
  }
  void end() {
    if (shown_) fmt::print(stderr, "\n");
    shown_ = false;
    last_ = 0;
  }

 private:
  std::uint64_t last_ = 0;
  bool shown_ = false;
};

void run(const GetArguments& arguments) {
  const auto known = datasets(arguments);
  if (arguments.name.empty()) {
    print_list(known, arguments.json);
    return;
  }
  const auto found = known.find(arguments.name);
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& [name, dataset] : known) names.push_back(name);
    throw UsageError(fmt::format("unknown dataset '{}'; did you mean '{}'? expected {}",
                                 arguments.name, nearest(arguments.name, names),
                                 fmt::join(names, ", ")));
  }
  const lab::Dataset& dataset = found->second;
  const std::filesystem::path folder = arguments.out.empty()
                                           ? lab::default_data_folder() / dataset.name
                                           : std::filesystem::path(arguments.out);
  DownloadLine line;
  lab::FetchOptions options;
  options.mirror = mirror_of(arguments);
  options.report = [&](std::string_view text) {
    line.end();
    fmt::print(stderr, "rode: {}\n", on_terminal(text));
  };
  options.progress = [&](std::string_view name, std::uint64_t now, std::uint64_t total) {
    line.show(name, now, total);
  };
  const lab::FetchResult result = lab::fetch_dataset(dataset, folder, options);
  line.end();
  if (arguments.json) {
    const Json json = {{"dataset", dataset.name},
                       {"folder", folder.string()},
                       {"already_there", result.already_there},
                       {"unverified", result.unverified}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}: {} in {}\n", dataset.name, result.already_there ? "already there," : "complete,",
             folder.string());
  for (const std::string& file : result.unverified) {
    fmt::print("unverified: {} (no checksum is known for it)\n", file);
  }
  if (!dataset.next.empty()) fmt::print("next: {}\n", dataset.next);
}

}  // namespace

void add_data_get_command(CLI::App& data) {
  const auto arguments = std::make_shared<GetArguments>();
  CLI::App* command = data.add_subcommand(
      "get", "Download a dataset and verify it; without a name, list the datasets");
  command->add_option("name", arguments->name, "name of the dataset");
  command->add_option("--out", arguments->out,
                      "folder for its files (default: NAME in RODE_DATA_DIR, else in data)");
  command->add_option("--mirror", arguments->mirror,
                      "URL of a mirror that has NAME/FILE, instead of the dataset's host (default: "
                      "RODE_DATA_MIRROR)");
  command->add_option("--manifest", arguments->manifest,
                      "file that describes datasets, instead of the built-in list");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer("Examples:\n  rode data get\n  rode data get cifar-100 --out data/cifar-100");
  command->callback([=] { arguments_as_usage([&] { run(*arguments); }); });
}

}  // namespace rode::cli
