// SPDX-License-Identifier: Apache-2.0
// Fuzzes option texts: any name, key and value gives a method that round-trips, or an Error.
//
// The first line is an optimizer's name, the others are key=value. The same bytes then serve
// as splits, as globs and as parameter names.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "optim/splits.h"
#include "rode/error.h"
#include "rode/method.h"
#include "rode/optim/rode.h"
#include "rode/routing.h"

namespace {

using rode::Method;
using rode::Settings;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_options: %s\n", what);
  std::abort();
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const std::size_t at = text.find('\n');
    lines.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return lines;
    text.remove_prefix(at + 1);
  }
}

Settings settings_of(const Method& method) {
  Settings out;
  for (const rode::OptionInfo& info : method.options()) out.emplace_back(info.key, info.value);
  return out;
}

// Only rode::Error may come out; anything else reaches the driver and is a crash.
template <class F>
bool succeeds(F&& f) {
  try {
    f();
    return true;
  } catch (const rode::Error& error) {
    require(std::string_view(error.what()).starts_with("["), "a message without its operation");
    return false;
  }
}

void check_method(std::string_view name, const Settings& settings) {
  std::vector<Method> made;
  if (!succeeds([&] { made.push_back(Method::by_name(name, settings)); })) return;
  const Settings printed = settings_of(made[0]);
  try {
    require(settings_of(made[0].with(printed)) == printed, "options change by their own texts");
    require(settings_of(Method::by_name(name, printed)) == printed, "options do not come back");
  } catch (const rode::Error& error) {
    require(false, error.what());  // what was printed must be readable
  }
}

void check_splits(std::string_view text, std::string_view name) {
  for (const std::int64_t fan_out : {0LL, 1LL, 12LL, 1280LL}) {
    succeeds([&] {
      std::int64_t sum = 0;
      for (const std::int64_t size : rode::Splits("fuzz", text).blocks(name, fan_out)) {
        require(size > 0 || fan_out == 0, "an empty block");
        sum += size;
      }
      require(sum == fan_out, "blocks do not cover the matrix");
    });
  }
}

void check_routing(std::string_view pattern, std::string_view name) {
  const bool matches = rode::glob_match(pattern, name);
  require(rode::glob_match("*", name), "'*' matches everything");
  require(rode::glob_match(std::string(pattern) + "*", name) || !matches,
          "a longer '*' matches less");
  const std::array<rode::Parameter, 2> parameters{
      rode::Parameter{
          .name = std::string(name), .value = {nullptr, {3, 4}, rode::DType::f32}, .grad = {}},
      rode::Parameter{.name = "norm", .value = {nullptr, {3}, rode::DType::f32}, .grad = {}}};
  const rode::Routing routing{rode::Route::language,
                              {{std::string(pattern), rode::Treatment::frozen}}};
  succeeds([&] {
    const auto routed = route_parameters(parameters, routing);
    require(routed.size() == 2, "a parameter was lost");
    require((routed[0].treatment == rode::Treatment::frozen) == matches, "the override was lost");
    require(!routing_table(parameters, routed, rode::RodeOptions{}).empty(), "no table");
  });
  succeeds([&] { rode::route_from_string(name); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;  // longer ones only cost time
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string_view> lines = lines_of(text);
  Settings settings;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::size_t at = lines[i].find('=');
    settings.emplace_back(lines[i].substr(0, at), at == std::string_view::npos
                                                      ? std::string_view()
                                                      : lines[i].substr(at + 1));
  }
  check_method(lines[0], settings);
  for (const auto& [key, value] : settings) {
    check_splits(value, "h.0.c_attn.weight");
    check_routing(key, value);
    check_routing(value, key);
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const rode::OptimizerInfo& info : rode::list_optimizers()) {
    std::string whole = info.name;
    for (const rode::OptionInfo& option : info.options) {
      seeds.push_back(info.name + "\n" + option.key + "=" + option.value);
      whole += "\n" + option.key + "=" + option.value;
    }
    seeds.push_back(whole);
  }
  seeds.emplace_back("rode\nradius=adaptive\nreproject=final\ncoefficients=you\nns_form=gram");
  seeds.emplace_back("muon\ncoefficients=four\nns_steps=4");
  seeds.emplace_back("rode\nsplits=*.c_attn.weight=3,h.?.qkv=768+256+256");
  seeds.emplace_back("muon\n*.weight=h.0.weight\nh.?.*=h.0.c_attn.weight\nwte=lm_head");
  return seeds;
}
