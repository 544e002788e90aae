// SPDX-License-Identifier: Apache-2.0
// An optimizer's rule together with its options, as used by a parameter group.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace rode {

class Rule;  // internal: src/optim/rule.h

// key=value pairs as on the command line.
using Settings = std::vector<std::pair<std::string, std::string>>;

struct OptionInfo {
  std::string key;
  std::string value;  // text that parses back to the same value
  std::string help;   // one line: meaning and range
  bool live = false;  // may be changed between steps
  bool set = true;    // false: not given, and the value follows other options
};

// Made from any options struct of optim/*.h (`Method m = MuonOptions{.lr = 0.02}`) or
// by name. Invalid options throw here, naming field, value and range.
class Method {
 public:
  template <class Options>
    requires requires(const Options& options) { make_rule(options); }
  Method(const Options& options)  // NOLINT: options are a method
      : rule_(make_rule(options)) {}
  explicit Method(std::shared_ptr<const Rule> rule) : rule_(std::move(rule)) {}

  // Names and defaults as `rode optimizers` prints them; unknown names and keys throw
  // and name the nearest.
  static Method by_name(std::string_view name, const Settings& settings = {});

  std::string_view name() const;
  // The optimizer of which the name is a preset, or the name itself. Within a family state may be
  // exchanged.
  std::string_view family() const;
  // The name that goes with these options: "muon-rms" where "muon" was given scale = rms.
  std::string_view preset() const;
  std::vector<OptionInfo> options() const;
  // The same method with these options changed.
  Method with(const Settings& settings) const;
  // A rate (lr, lr_rho, lr_rest) or another live number, as it acts where it is not given; nothing
  // where the optimizer has no such option.
  std::optional<double> number(std::string_view key) const;
  // Whether the rest is stepped by AdamW; else the same rule steps it, with rates of its own.
  bool leaves_rest_to_adamw() const;
  // A matrix whose norm is at most this at construction is stepped by the rest's rule; nothing:
  // every matrix is stepped as one.
  std::optional<double> zero_norm() const;
  // The options as their struct; null if they belong to another optimizer.
  template <class Options>
  const Options* get_if() const {
    return static_cast<const Options*>(values(typeid(Options)));
  }

  const std::shared_ptr<const Rule>& rule() const { return rule_; }

 private:
  const void* values(const std::type_info& type) const;

  std::shared_ptr<const Rule> rule_;
};

struct OptimizerInfo {
  std::string name;
  std::string summary;
  std::string family;  // the name whose options it presets; its own where it presets none
  std::vector<OptionInfo> options;
};

// Every optimizer of the library, in documentation order.
std::vector<OptimizerInfo> list_optimizers();

}  // namespace rode
