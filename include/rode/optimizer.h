// SPDX-License-Identifier: Apache-2.0
// The driver: routes parameters, owns their state, steps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/diagnostics.h"
#include "rode/method.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"

namespace rode {

enum class Device { cpu, cuda };

// What to do with a gradient that holds NaN or Inf, or that is absent.
enum class OnBadGradient {
  refuse,  // throw, name the parameter, change nothing
  skip,    // leave that parameter and its state as they are, step the others
};

struct EngineOptions {
  Device device = Device::cpu;
  int threads = 0;  // 0: every core the process may use. Results do not depend on it.
  OnBadGradient on_non_finite = OnBadGradient::refuse;
  OnBadGradient on_missing = OnBadGradient::refuse;
  // Same-shape matrices as one batch with symmetric products; false: the plain loop,
  // one matrix after the other with full products. They agree to rounding.
  bool batched = true;
  // Called for what a user should hear once: doubtful options, a held zero matrix, ...
  std::function<void(std::string_view)> notify = {};
};

struct ParameterGroup {
  std::vector<Parameter> parameters;
  Method method;
  Routing routing = {};
};

class Optimizer {
 public:
  Optimizer(std::vector<Parameter> parameters, Method method, Routing routing = {},
            EngineOptions engine = {});
  explicit Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine = {});
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // One step. `multiplier` scales lr, lr_rho and lr_rest (schedule.h). After the first
  // call nothing is allocated, except by oneDNN where ns_dtype = bf16. Throws before
  // anything has changed (what `notify` throws comes after the step).
  void step(double multiplier = 1.0);

  // Gradients (and weights) may move between steps; `index` counts the parameters in
  // the order given, over all groups. A null gradient means "none this step". Tied
  // entries are one parameter: binding any of them binds it.
  void bind_grad(std::size_t index, ConstTensorView grad);
  void bind_value(std::size_t index, TensorView value);

  // Changes a live option of a group: rates, decays, momentum.
  void set_option(std::size_t group, std::string_view key, std::string_view value);
  void set_option(std::size_t group, std::string_view key, double value);
  const Method& method(std::size_t group = 0) const;
  std::size_t group_count() const;

  std::int64_t steps_done() const;

  // State: exists from construction, keyed by parameter name.
  std::vector<TensorEntry> state() const;  // "state.<parameter>.<key>"
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);  // all or nothing
  // Copies entries of the given names; `complete` refuses a missing one. Returns the
  // names that were expected and absent.
  std::vector<std::string> load_state(const SafetensorsFile& file, bool complete = true);

  // What belongs beside state() in a file of the caller's: the step count, the optimizer.
  std::map<std::string, std::string> metadata() const;

  std::size_t state_bytes() const;
  std::size_t workspace_bytes() const;

  // Of the last step.
  std::vector<MatrixDiagnostics> matrix_diagnostics() const;
  GlobalDiagnostics global_diagnostics() const;
  // Parameters that it left alone: no gradient, or one that is not finite.
  std::vector<std::string> skipped() const;

  std::string routing_table() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes of state these parameters would have, from shapes alone (data may be null).
std::size_t planned_state_bytes(std::span<const Parameter> parameters, const Method& method,
                                const Routing& routing = {});

}  // namespace rode
