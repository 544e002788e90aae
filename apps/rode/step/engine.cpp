// SPDX-License-Identifier: Apache-2.0
// `rode step --device cpu` and `cuda`: the engine on the tensors of a file.
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "rode/error.h"
#include "step/finite.h"
#include "step/memory.h"
#include "step/run.h"

namespace rode::cli {
namespace {

using Field = std::pair<const char*, double MatrixDiagnostics::*>;
constexpr std::array<Field, 7> kFields = {{{"rho", &MatrixDiagnostics::rho},
                                           {"rho_next", &MatrixDiagnostics::rho_next},
                                           {"s", &MatrixDiagnostics::s},
                                           {"q", &MatrixDiagnostics::q},
                                           {"theta", &MatrixDiagnostics::theta},
                                           {"gamma", &MatrixDiagnostics::gamma},
                                           {"m_norm", &MatrixDiagnostics::m_norm}}};

// Blocks of one parameter come as "name[0]", "name[1]", ...
void add_diagnostics(StepOutput& output, const StepInput& input,
                     const std::vector<MatrixDiagnostics>& diagnostics) {
  std::map<std::string, std::vector<const MatrixDiagnostics*>> by_parameter;
  for (const Parameter& parameter : input.parameters()) by_parameter[parameter.name];
  for (const MatrixDiagnostics& entry : diagnostics) {
    auto owner = by_parameter.find(entry.name);
    if (owner == by_parameter.end()) {
      owner = by_parameter.find(entry.name.substr(0, entry.name.rfind('[')));
    }
    if (owner != by_parameter.end()) owner->second.push_back(&entry);
  }
  for (const auto& [parameter, blocks] : by_parameter) {
    if (blocks.empty()) continue;
    for (const auto& [key, member] : kFields) {
      std::vector<double> values;
      for (const MatrixDiagnostics* block : blocks) values.push_back(block->*member);
      output.add_floats(fmt::format("diag.{}.{}", parameter, key),
                        {static_cast<std::int64_t>(blocks.size())}, values);
    }
  }
}

void load_state(Optimizer& optimizer, const StepInput& input) {
  for (const std::string& absent : optimizer.load_state(input.file(), false)) {
    const std::string* owner = input.owner_of_state(absent);
    if (owner != nullptr && input.has_state_of(*owner)) {
      fmt::print(stderr, "rode: note: '{}' is not in the file and starts as at the first step\n",
                 on_terminal(absent));
    }
  }
}

void list_weights(StepOutput& output, const StepInput& input) {
  for (const Parameter& parameter : input.parameters()) {
    output.entries.push_back({"param." + parameter.name, parameter.value});
  }
}

}  // namespace

void require_gradients(const StepInput& input, const std::vector<RoutedParameter>& routed,
                       std::int64_t steps) {
  for (const RoutedParameter& entry : routed) {
    if (entry.treatment == Treatment::frozen) continue;
    for (std::int64_t k = 0; k < steps; ++k) {
      if (input.gradient(entry.index, k).data != nullptr) continue;
      const std::string& name = input.parameters()[entry.index].name;
      throw Error(ErrorKind::missing_gradient, "step",
                  fmt::format("parameter '{0}' has no gradient in step {1}; expected 'grad.{0}' or "
                              "'grad@{1}.{0}'; add it, freeze the parameter with --override, or "
                              "use --on-missing skip",
                              name, k));
    }
  }
}

StepOutcome step_with_engine(const StepInput& input, const StepPlan& plan, const Finish& finish) {
  if (plan.engine.on_missing == OnBadGradient::refuse) {
    require_gradients(input, input.routed(plan.method, plan.routing), plan.steps);
  }
  StepMemory memory(input, plan.engine.device);
  Optimizer optimizer(memory.parameters(), plan.method, plan.routing, plan.engine);
  load_state(optimizer, input);
  StepOutcome outcome;
  for (std::int64_t k = 0; k < plan.steps; ++k) {
    for (std::size_t i = 0; i < input.parameters().size(); ++i) {
      optimizer.bind_grad(i, memory.gradient(i, k));
    }
    try {
      optimizer.step(plan.schedule.multiplier(optimizer.steps_done()));
      optimizer.check();
    } catch (const Error& error) {
      if (!error.changed()) throw;
      memory.read_back();
      StepOutput reached;
      list_weights(reached, input);
      check_result(input, plan, reached, k + 1);
      throw;
    }
    for (const std::string& name : optimizer.skipped()) ++outcome.skipped[name];
  }

  memory.read_back();
  StepOutput output;
  list_weights(output, input);
  for (TensorEntry& entry : optimizer.state()) output.entries.push_back(std::move(entry));
  add_diagnostics(output, input, optimizer.matrix_diagnostics());
  output.metadata = optimizer.metadata();
  check_result(input, plan, output, plan.steps);
  finish(output);
  outcome.global = optimizer.global_diagnostics();
  outcome.state_bytes = optimizer.state_bytes();
  outcome.workspace_bytes = optimizer.workspace_bytes();
  return outcome;
}

}  // namespace rode::cli
