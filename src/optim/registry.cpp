// SPDX-License-Identifier: Apache-2.0
// The list of names, and what a method tells of its rule.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/presets.h"
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
  std::string family;  // as OptimizerInfo's
};

// Rates by default are those that the paper selected for its Qwen2-style model, except where an
// optimizer's header says otherwise.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> table = [] {
    std::vector<Entry> out;
    const auto add = [&]<class Options>(const char* summary, const Options& defaults) {
      const std::string family(family_of<Options>());
      out.push_back({family, summary, defaults, family});
      for (const Preset<Options>& preset : presets_of<Options>()) {
        out.push_back({preset.name, preset.summary, preset.options, family});
      }
    };
// A type cannot be in parentheses.
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define RODE_ADD(Class, Options, name, summary) add(summary, Options{});
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

std::string_view Method::family() const { return rule_->family(); }

std::string_view Method::preset() const { return rule_->preset(); }

std::vector<OptionInfo> Method::options() const { return rule_->options(); }

Method Method::with(const Settings& settings) const { return Method(rule_->with(settings)); }

std::optional<double> Method::number(std::string_view key) const { return rule_->live_number(key); }

bool Method::leaves_rest_to_adamw() const { return rule_->leaves_rest_to_adamw(); }
std::optional<double> Method::zero_norm() const { return rule_->zero_norm(); }

const void* Method::values(const std::type_info& type) const { return rule_->values(type); }

std::vector<OptimizerInfo> list_optimizers() {
  std::vector<OptimizerInfo> out;
  for (const Entry& entry : entries()) {
    out.push_back({entry.name, entry.summary, entry.family, entry.method.options()});
  }
  return out;
}

}  // namespace rode
