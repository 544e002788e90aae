// SPDX-License-Identifier: Apache-2.0
// Options of a parameter group: the engine's struct, as LibTorch's schedulers and archives know it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "rode/method.h"
#include "rode/optim/list.h"
#include "rode/optimizer.h"
#include "rode/parameter.h"
#include "rode/routing.h"

namespace rode::torch {

using rode::GroupRule;

// The fields of a parameter group besides the optimizer's own options.
struct GroupSettings {
  GroupRule rule = GroupRule::automatic;
  Route route = Route::automatic;         // of an automatic group, and of a module
  Layout layout = Layout::out_in;         // how the group's matrices are stored
  std::vector<std::string> names = {};    // of the parameters, for messages; empty: "param.0", ...
  bool couple_lr_rho = true;              // lr_rho acts as lr_rho * lr / initial_lr
  std::optional<double> initial_lr = {};  // get_lr() when the group was added to its optimizer
};

// The side of the options that the optimizer works with, whatever its rule.
class GroupOptions : public GroupSettings {
 public:
  virtual ~GroupOptions() = default;

  // The options as they are set: how other rates follow lr is `coupling`.
  virtual Method method() const = 0;
  RateCoupling coupling() const;
  // Takes the present lr for the first one, throws where a value is out of range.
  virtual void adopt() = 0;
  // Takes all values of options of the same type.
  virtual void assign(const GroupOptions& other) = 0;
  // One option of the method by its name, such as "momentum"; throws where it has none of it.
  virtual void set_number(std::string_view key, double value) = 0;
  // Sends changes to a live engine; false: it must be rebuilt.
  virtual bool send(rode::Optimizer& engine, std::size_t group) const = 0;

 protected:
  GroupOptions() = default;
  explicit GroupOptions(GroupSettings settings) : GroupSettings(std::move(settings)) {}
  GroupOptions(const GroupOptions&) = default;
  GroupOptions& operator=(const GroupOptions&) = default;
};

// What an archive holds of a method: the options that were given. Those that follow others still do
// so after loading.
std::map<std::string, std::string> given_options(const Method& method);

// `EngineOptions` is a struct of rode/optim/: its fields are this class's, under their names.
//   RODEOptions options(rode::RodeOptions{.lr = 3e-2, .nesterov = true});
//   options.lr_rho = 2e-3;
// A parameter group with its own options takes nothing from the optimizer's defaults.
template <class EngineOptions>
class Options final : public ::torch::optim::OptimizerCloneableOptions<Options<EngineOptions>>,
                      public GroupOptions,
                      public EngineOptions {
 public:
  Options(EngineOptions engine = {}, GroupSettings group = {})  // NOLINT: a struct is options
      : GroupOptions(std::move(group)), EngineOptions(std::move(engine)) {}
  Options(double rate) { this->lr = rate; }  // NOLINT: as torch::optim's options

  // What a scheduler changes: lr, or lr_rest if the group uses the rule of the rest.
  double get_lr() const override;
  void set_lr(double rate) override;

  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;

  Method method() const override;
  void adopt() override;
  void assign(const GroupOptions& other) override;
  void set_number(std::string_view key, double value) override;
  bool send(rode::Optimizer& engine, std::size_t group) const override;
};

// RODEOptions, MuonOptions, ...: the class's name and "Options".
#define RODE_NAME_OPTIONS(Class, EngineOptions, name, summary) \
  using Class##Options = Options<rode::EngineOptions>;         \
  extern template class Options<rode::EngineOptions>;
RODE_FOR_EACH_OPTIMIZER(RODE_NAME_OPTIONS)
#undef RODE_NAME_OPTIONS

}  // namespace rode::torch
