// SPDX-License-Identifier: Apache-2.0
// What an Optimizer holds: parameters as given, parameter groups with their rules, state and jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "backend/backend.h"
#include "core/ring.h"
#include "optim/rule.h"
#include "optim/state_store.h"
#include "rode/error.h"
#include "rode/optimizer.h"

namespace rode {

// Throw where a parameter cannot have this gradient, or its weights cannot be there.
void check_grad(const Parameter& p, const ConstTensorView& grad);
void check_moved(const Parameter& p, const TensorView& value);
// The method as it acts, with the rates that follow lr.
Method acting(const Method& method, const RateCoupling& coupling);
// Throws unless it is 0 or more.
void check_multiplier(std::string_view operation, double multiplier);
// What an index may be, for an error: "0 to 3".
std::string valid_indices(std::size_t count);

struct Optimizer::Impl {
  struct Group {
    Method method;  // as set; the rates that follow lr act by `coupling`
    RateCoupling coupling;
    std::unique_ptr<RuleInstance> instance;
    std::vector<RoutedParameter> routed;  // indices within the group
    std::size_t first = 0;                // index of the group's first parameter
    std::size_t count = 0;
    Routing routing = {};
  };
  struct Entry {           // one parameter as given
    Parameter& parameter;  // of `parameters`
    std::size_t owner;     // itself, or the entry it is tied to
    bool stepped;
    std::vector<JobBase*> jobs;
    std::vector<std::size_t> tied;  // further entries of its memory: they show what it is bound to
  };

  Impl(std::vector<ParameterGroup> given, EngineOptions options);

  // Construction.
  void check_across_groups() const;
  void build(Group& group);
  // Looks at the matrices whose start is not known, where the rule asks for it.
  void find_zero_starts(const Group& group);
  // on_zero = start: stores how long the start of a zero matrix will be, where state does not know.
  void store_start_norms();
  // Says in the routing which matrices these are, by their state.
  void tell_starts();
  // The same optimizer with these starts instead, one per parameter: state is zero. Nothing
  // where they are those of this one.
  std::unique_ptr<Impl> with_starts(const SafetensorsFile& file) const;
  void tie(std::size_t owner, std::size_t other);

  // Binding. `entry_at` maps a tied entry to the one that is updated.
  Entry& entry_at(std::size_t index);
  Group& group_at(std::size_t index);
  void bind_grad(Entry& entry, const ConstTensorView& grad);
  void bind_value(Entry& entry, const TensorView& value);
  void point_at_grad(Entry& entry);

  // Takes options and coupling of a group, or throws and leaves those before.
  void set_rule(Group& group, Method method, const RateCoupling& coupling);

  // A step that is made in phases: what has been done of it.
  enum class Phase { none, prepared, computed };
  // Throws where the step is not in this phase.
  void expect(Phase wanted, std::string_view operation) const;
  StepContext context(double multiplier) const;

  // The parts of a step outside the backend.
  void gate_missing();
  void send_changed();
  // Fetches the results of the steps since the last fetch: count, refusal, diagnostics.
  void look();
  void forget_inactive();
  Error refusal(const Fetched& now) const;
  Error spoilage(const Fetched& now) const;
  GlobalDiagnostics sum_up();
  std::vector<MatrixDiagnostics> matrices() const;
  void keep_history(std::size_t count);
  std::vector<StepDiagnostics> take_history();
  void announce();

  // The families of the parameter groups in order: "rode,adamw".
  std::string families() const;

  EngineOptions engine;
  std::unique_ptr<Backend> backend;
  std::vector<Parameter> parameters;  // bound memory included; its place does not change
  std::vector<Entry> entries;
  std::vector<Group> groups;
  std::vector<std::unique_ptr<ParameterState>> states;
  JobList jobs;
  // As of the last fetch.
  std::int64_t steps = 0, refused_steps = 0, spoiled_steps = 0;
  std::optional<Error> found;  // not yet thrown by check()
  GlobalDiagnostics global;
  std::unordered_set<const JobBase*> announced;  // the user has heard why they do not move
  // Of the last steps, where the backend is not deferred: by the places of `ring`.
  std::vector<StepDiagnostics> history;
  Ring ring;
  std::size_t kept_steps = 0;  // as keep_history() was told
  bool callers_state = false;  // in memory that was asked for
  Phase phase = Phase::none;
  double phased_multiplier = 1;  // of the step that is made in phases
  bool changed = true;           // jobs, since the backend last read them
};

}  // namespace rode
