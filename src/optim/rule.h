// SPDX-License-Identifier: Apache-2.0
// What an optimizer is to the driver: options, state per parameter, jobs per step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "backend/backend.h"
#include "rode/method.h"
#include "rode/parameter.h"
#include "rode/routing.h"

namespace rode {

struct EngineOptions;

// A routed parameter as a rule sees it.
struct Subject {
  std::size_t index = 0;  // over all groups
  const Parameter* parameter = nullptr;
  Treatment treatment = Treatment::rest;
};

// A parameter with what its routing has decided of it.
inline Parameter as_routed(Parameter parameter, const RoutedParameter& entry) {
  parameter.experts = entry.experts;
  return parameter;
}

struct StateSpec {
  std::string key;
  Shape shape;
  DType dtype = DType::f32;
  bool with_sign = false;  // may be negative, though its key is that of a norm
};

// The allocated state of one parameter.
class StateSlots {
 public:
  virtual ~StateSlots() = default;
  virtual void* find(std::string_view key) const = 0;  // null: no such key
  virtual DType dtype(std::string_view key) const = 0;
  // Whether it holds values of an earlier optimizer, which the start must not overwrite.
  virtual bool kept(std::string_view key) const = 0;
};

// The constants that a group's jobs point at; they change when live options do.
class RuleInstance {
 public:
  virtual ~RuleInstance() = default;
  virtual void refresh(const Rule& rule) = 0;
  // Without a backend the state has no addresses either: jobs that are only looked at.
  virtual void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                        Backend* backend) = 0;
};

class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view family() const = 0;  // the optimizer of which `name` is a preset
  virtual std::string_view preset() const = 0;  // the name that goes with these options
  virtual std::vector<OptionInfo> options() const = 0;
  // The options struct of this type, null where it is another's.
  virtual const void* values(const std::type_info& type) const = 0;
  virtual std::shared_ptr<const Rule> with(const Settings& settings) const = 0;

  // The same with one live number changed; null where `key` is no such option.
  virtual std::shared_ptr<const Rule> with_number(std::string_view key, double value) const = 0;
  // A live number; nothing where `key` is no such option.
  virtual std::optional<double> live_number(std::string_view key) const = 0;
  // Whether the option was given; false: its value follows other options.
  virtual bool is_set(std::string_view key) const = 0;
  // How `other` differs from this: in nothing, in live options only, or in what is fixed at
  // construction (also where it is another optimizer).
  enum class Difference { none, live, fixed };
  virtual Difference difference(const Rule& other) const = 0;
  // Whether the rest is stepped by AdamW with constants of its own, and not by this rule.
  virtual bool leaves_rest_to_adamw() const = 0;

  // Throws where this rule cannot step such a parameter on such a device.
  virtual std::vector<StateSpec> state(const Subject& subject) const = 0;
  // Throws where the options ask for what the engine, on its device, does not have.
  virtual void check_engine(const EngineOptions& engine) const = 0;
  virtual void check_names(const std::vector<std::string>&) const {}
  // Throws where the options need all matrices at once, and a process would step some of them.
  virtual void check_share() const {}
  // A matrix whose norm is at most this at construction is left to the rest; none: it is not.
  virtual std::optional<double> zero_norm() const { return std::nullopt; }
  // A message for the user about valid but doubtful options; empty: nothing.
  virtual std::string advice() const { return {}; }
  virtual std::unique_ptr<RuleInstance> instantiate() const = 0;
};

}  // namespace rode
