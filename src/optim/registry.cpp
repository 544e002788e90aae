// SPDX-License-Identifier: Apache-2.0
// The names of the library: each optimizer's options struct with its defaults.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/rule.h"
#include "rode/error.h"
#include "rode/method.h"
#include "rode/optim/list.h"
#include "rode/version.h"

namespace rode {
namespace {

struct Entry {
  std::string name, summary;
  Method method;
  std::string family = {};  // as OptimizerInfo's
};

MuonOptions muon_rms() { return {.lr = 5.160e-3, .scale = MuonScale::rms, .lr_rest = 2.913e-3}; }

MuonOptions muon_normproj() {
  MuonOptions options = muon_rms();
  options.constraint = MuonConstraint::normproj;
  return options;
}

// Names that preset some options of a struct; each follows its struct's own name.
const std::vector<Entry>& presets_of(std::string_view name) {
  static const std::map<std::string_view, std::vector<Entry>> table{
      {"rode",
       {{"rode-snr", "RODE with the angle damped by the signal-to-noise ratio",
         RodeOptions{.lr = 4.544e-3, .lr_rho = 3.698e-5, .snr = true, .lr_rest = 2.974e-3}},
        {"rode-fixed", "RODE with every radius held at its initial value",
         RodeOptions{.lr_rho = 0, .radius = Radius::fixed}}}},
      {"muon",
       {{"muon-rms", "Muon with the RMS-matched scale", muon_rms()},
        {"muon-normproj", "Muon RMS, each matrix rescaled to its initial norm", muon_normproj()}}},
  };
  static const std::vector<Entry> none;
  const auto found = table.find(name);
  return found == table.end() ? none : found->second;
}

// Defaults are the rates selected for the paper's Qwen2-style model.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> table = [] {
    std::vector<Entry> out;
    const auto add = [&](const char* name, const char* summary, const Method& method) {
      out.push_back({name, summary, method, name});
      for (const Entry& preset : presets_of(name)) {
        out.push_back(preset);
        out.back().family = name;
      }
    };
// A type cannot be in parentheses.
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define RODE_ADD(Class, Options, name, summary) add(name, summary, Options{});
    RODE_FOR_EACH_OPTIMIZER(RODE_ADD)
#undef RODE_ADD
    return out;
  }();
  return table;
}

}  // namespace

const char* version() { return RODE_VERSION_STRING; }

Method Method::by_name(std::string_view name, const Settings& settings) {
  const auto found = std::ranges::find(entries(), name, &Entry::name);
  if (found == entries().end()) {
    std::vector<std::string> names;
    for (const Entry& entry : entries()) names.push_back(entry.name);
    throw Error(ErrorKind::invalid_argument, "optimizer",
                fmt::format("unknown optimizer '{}'; did you mean '{}'? optimizers: {}", name,
                            nearest(name, names), fmt::join(names, ", ")));
  }
  return settings.empty() ? found->method : found->method.with(settings);
}

std::string_view Method::name() const { return rule_->name(); }

std::vector<OptionInfo> Method::options() const { return rule_->options(); }

Method Method::with(const Settings& settings) const { return Method(rule_->with(settings)); }

std::optional<double> Method::number(std::string_view key) const { return rule_->live_number(key); }

bool Method::leaves_rest_to_adamw() const { return rule_->leaves_rest_to_adamw(); }

const void* Method::values(const std::type_info& type) const { return rule_->values(type); }

std::vector<OptimizerInfo> list_optimizers() {
  std::vector<OptimizerInfo> out;
  for (const Entry& entry : entries()) {
    out.push_back({entry.name, entry.summary, entry.family, entry.method.options()});
  }
  return out;
}

}  // namespace rode
