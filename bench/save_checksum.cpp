// SPDX-License-Identifier: Apache-2.0
// What the checksum costs a save: write_safetensors against the same bytes written without one, in
// turns, as one JSON object.
//
//   bench_save_checksum [--megabytes 256] [--repeats 20] [--folder .]
//
// Both write to a temporary name, synchronise and rename; which comes first alternates. The disk
// decides most of the time, and may be shared: ratios are those of medians and of the fastest. The
// hash is also timed alone, in the thread's own processor time, over memory that no cache holds:
// its share is what a save would cost more where no second core is free.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/file_io.h"
#include "rode/safetensors.h"

namespace {

using namespace rode;

struct Options {
  std::size_t megabytes = 256;
  int repeats = 20;
  std::filesystem::path folder = ".";
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--megabytes") options.megabytes = std::stoul(value);
    if (key == "--repeats") options.repeats = std::stoi(value);
    if (key == "--folder") options.folder = value;
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

template <class Work>
double seconds(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class Work>
double processor_seconds(Work&& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // As a checkpoint is: matrices of some megabytes, none of them zero pages.
  constexpr std::int64_t kSide = 1024;
  const std::size_t count = std::max<std::size_t>(1, options.megabytes / 4);
  std::mt19937 draw(1);
  std::vector<std::vector<float>> tensors(count);
  std::vector<TensorEntry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    tensors[i].resize(kSide * kSide);
    for (float& value : tensors[i]) value = static_cast<float>(draw());
    entries.push_back(
        {"param." + std::to_string(i), {tensors[i].data(), {kSide, kSide}, DType::f32}});
  }
  const auto each_tensor = [&](auto&& work) {
    for (const auto& tensor : tensors) work(std::as_bytes(std::span(tensor)));
  };

  const auto path = options.folder / "bench_save_checksum.safetensors";
  const auto save_plain = [&] {
    AtomicFile file(path, "bench");
    each_tensor([&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.commit();
  };
  const auto hash_alone = [&] {
    Checksum sum;
    each_tensor([&](std::span<const std::byte> bytes) { sum.add(bytes); });
    if (sum.digits().empty()) std::abort();
  };
  save_plain();  // meets cold memory and a new file
  std::vector<double> with, without, hash;
  for (int i = 0; i < options.repeats; ++i) {
    for (const bool checksum : {i % 2 == 0, i % 2 != 0}) {
      if (checksum) {
        with.push_back(seconds([&] { write_safetensors(path, entries); }));
      } else {
        without.push_back(seconds(save_plain));
      }
    }
    hash.push_back(processor_seconds(hash_alone));
  }
  std::filesystem::remove(path);
  const double bytes = static_cast<double>(count) * kSide * kSide * sizeof(float);
  const nlohmann::ordered_json json = {
      {"bytes", bytes},
      {"repeats", options.repeats},
      {"save_seconds", median(with)},
      {"save_seconds_without_checksum", median(without)},
      {"ratio", median(with) / median(without)},
      {"fastest_save_seconds", least(with)},
      {"fastest_save_seconds_without_checksum", least(without)},
      {"ratio_of_fastest", least(with) / least(without)},
      {"hash_seconds", median(hash)},
      {"hash_share_of_fastest_save", median(hash) / least(without)},
      {"hash_gigabytes_per_second", bytes / median(hash) / 1e9},
      {"save_gigabytes_per_second", bytes / median(without) / 1e9}};
  std::printf("%s\n", json.dump(2).c_str());
}
