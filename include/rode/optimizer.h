// SPDX-License-Identifier: Apache-2.0
// The driver: routes parameters, owns their state, updates them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/diagnostics.h"
#include "rode/method.h"
#include "rode/optim/common.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"

namespace rode {

enum class Device { cpu, cuda };

// What to do with a gradient that holds NaN or Inf, or that is absent.
enum class OnBadGradient {
  refuse,  // throw, name the parameter, change nothing
  skip,    // leave that parameter and its state unchanged, update the others
};

// Caller-owned memory in which the engine keeps one state tensor.
struct StateMemory {
  void* data = nullptr;  // contiguous, on the engine's device; outlives the optimizer
  bool kept = false;     // holds state of an earlier optimizer; false: holds zeros
};
using StateAllocator = std::function<StateMemory(std::string_view parameter, std::string_view key,
                                                 const Shape& shape, DType dtype)>;

struct EngineOptions {
  // Where parameters and gradients are, and where state will be.
  Device device = Device::cpu;
  void* stream = nullptr;  // CUDA: a cudaStream_t that steps run on; null: the default stream
  int threads = 0;         // 0: every core that the process may use. Results do not depend on it.
  // Applies to gradients only: weights that are not finite are an error with either value.
  OnBadGradient on_non_finite = OnBadGradient::refuse;
  OnBadGradient on_missing = OnBadGradient::refuse;
  // Same-shape matrices as one batch with symmetric products; false: one matrix
  // after the other with full products, in the standard form. They agree to rounding.
  bool batched = true;
  // For tests and benchmarks: results agree to rounding, whichever kernels multiply.
  CudaProducts cuda_products = CudaProducts::automatic;
  // Whether the parameters are one process's share of a model's (shard_plan.h): then a pattern of
  // `splits` may match none of them, which would otherwise be a mistake.
  bool share = false;
  // Whether steps may be made in phases (Optimizer::prepare). The last iterates of all matrices are
  // then kept at once: workspace of the size of the matrices, in fp32 on the CPU.
  bool phases = false;
  // Called once for each thing a user should know: doubtful options, a held zero matrix, ...
  std::function<void(std::string_view)> notify = {};
  // Asked at construction for the memory of every state tensor; null: the engine allocates it.
  StateAllocator state_memory = {};
};

// For schedulers that move lr alone, as torch's do: lr_rho and lr_rest act times lr / from. An
// lr_rest that was not given follows lr without it.
struct RateCoupling {
  // The lr that the other rates belong to: the group's first. Unset or 0: nothing follows lr.
  std::optional<double> from = {};
  bool lr_rho = true;  // false: only lr_rest follows

  bool operator==(const RateCoupling&) const = default;
};

struct ParameterGroup {
  std::vector<Parameter> parameters;
  Method method;
  Routing routing = {};
  RateCoupling coupling = {};
};

// A parameter's gradient as `prepare` has measured it.
struct MeasuredGradient {
  std::string parameter;
  bool good = true;         // finite and within what the rule can keep; so are weights, where read
  double squared_norm = 0;  // of the gradient
};

// On CUDA a step is enqueued: step() returns before it is done, and later work on the same stream
// sees its result. Nothing is copied to the host unasked, so step() cannot know whether a gradient
// is not finite: on the device, such a step changes no weight, no state and no step count, and is
// counted as refused. The caller learns of it from check(), whenever it likes. Later steps run as
// usual.
//
// Weights must be finite before and after a step. If measuring reads them (RODE, Muon with a
// constraint), a step on weights that are not finite is refused like one with a bad gradient.
// Otherwise, and if a step overflows, only the sums of the step itself reveal it: that step has
// been performed and counts, and step() (on CUDA, check()) throws an Error with changed() = true.
// The weights are then unusable: restore a checkpoint.
//
// Calls that read results (check, steps_done, refused_steps, state, metadata, save, the
// diagnostics, skipped) wait for the steps enqueued so far. So do load and construction. On the CPU
// every step is done, and checked, when step() returns.
class Optimizer {
 public:
  Optimizer(std::vector<Parameter> parameters, Method method, Routing routing = {},
            EngineOptions engine = {});
  explicit Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine = {});
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // One step. `multiplier` scales lr, lr_rho and lr_rest (schedule.h). After the first
  // call nothing is allocated, except by oneDNN with ns_dtype = bf16. Throws before anything has
  // changed, unless the result is not finite: see Error::changed() (an exception from `notify` also
  // comes after the step). On CUDA it throws only what the host can know, such as a missing
  // gradient; check() reports everything else.
  void step(double multiplier = 1.0);

  // The same step in phases, for engines that do something between them: exchange verdicts or
  // messages, or let something else run. EngineOptions::phases allows it. One after the other the
  // three are step(multiplier), bit for bit on the CPU; nothing may be bound, set, saved or loaded
  // between them.
  //   prepare  measures weights, momentum and gradients; changes nothing, throws what step() throws
  //            before it has measured.
  //   compute  decides, forms the momentum and the direction of every matrix, and steps the rest.
  //            Matrices are as they were. Throws a refusal, as step() does; that ends the step.
  //   apply    writes the matrices. Throws as step() does where the result is not finite.
  // On CUDA each is enqueued; a step that compute refuses is one in which apply writes nothing, and
  // check() tells so after it. Until then counts and diagnostics are those of the step before. Not
  // into a captured graph. SOAP works in apply alone.
  void prepare(double multiplier = 1.0);
  void compute();
  void apply();
  // Ends a step that has been prepared and no more: weights, state and counts are as if it had not
  // been. Diagnostics of parameters that have changed between having a gradient and none are gone.
  void abandon();
  // What `prepare` found, by parameter; those that are not stepped are left out. Waits for it.
  std::vector<MeasuredGradient> measured();

  // Throws the error of a step that was refused since the last check, or whose result is not
  // finite: what step() throws on the CPU. A refused step has changed nothing; the optimizer
  // continues as if it had not happened. Of several errors, one that has changed the weights is
  // reported, otherwise the first one found. Also calls `notify` if there is news. On the CPU there
  // is never anything left to report.
  void check();

  // CUDA: the stream on which steps run from now on, after those already enqueued. The previous
  // stream must still exist and must not be capturing. If the new one is capturing, the host waits
  // for the earlier steps.
  void set_stream(void* stream);

  // A caller may capture step() into its own CUDA graph, after one step outside a capture, and
  // replay it for as long as the optimizer lives. A replay is a whole step, counted and gated like
  // any other. It updates the weights and reads the gradients that were bound at capture. Its
  // multiplier is that of the last step outside a capture, or the one set here since (the argument
  // of a captured step() is ignored). Its options are those of the last step, captured or not, or
  // the ones sent since. Reads and settings here must follow the replays in stream order: call
  // set_stream if the replays run on another stream.
  void set_multiplier(double multiplier);
  void send_options();
  bool capturing() const;  // whether the stream of the steps is being captured

  // The addresses of gradients (and weights) may change between steps; `index` counts the
  // parameters in the order given, over all parameter groups. A null gradient means "none this
  // step". Tied entries are one parameter: binding any of them binds it. Binding again what is
  // bound costs a comparison, so callers need not look for changes themselves.
  void bind_grad(std::size_t index, ConstTensorView grad);
  void bind_value(std::size_t index, TensorView value);
  // The same for memory that has the parameter's shape. Inline, because adapters bind every
  // parameter at every step, and most of them have not moved.
  void bind_grad(std::size_t index, const void* data, DType dtype) {
    if (index < parameters_.size()) {
      const ConstTensorView& own = parameters_[index].grad;
      if (data == own.data && (data == nullptr || dtype == own.dtype)) return;
    }
    rebind_grad(index, data, dtype);
  }
  void bind_value(std::size_t index, void* data, DType dtype) {
    if (index < parameters_.size()) {
      const TensorView& own = parameters_[index].value;
      if (data == own.data && dtype == own.dtype) return;
    }
    rebind_value(index, data, dtype);
  }
  // In the order given, over all groups, with what is bound now.
  std::span<const Parameter> parameters() const { return parameters_; }

  // Changes a live option of a parameter group: rates, decays, momentum. `method` has the options
  // as given here: how other rates follow lr (RateCoupling) does not show in it.
  void set_option(std::size_t group, std::string_view key, std::string_view value);
  void set_option(std::size_t group, std::string_view key, double value);  // fast: no parsing
  // All options of a group at once, as another `method` of the same optimizer has them. False, and
  // nothing changed: one that is fixed at construction differs; a new optimizer is needed.
  bool set_method(std::size_t group, const Method& method);
  void set_coupling(std::size_t group, const RateCoupling& coupling);
  const Method& method(std::size_t group = 0) const;
  std::size_t group_count() const;

  // Steps performed; refused ones do not count.
  std::int64_t steps_done() const;
  // Continues counting from here: for state that came through `state_memory`. The count selects the
  // random sequence of stochastic rounding.
  void set_steps_done(std::int64_t steps);
  // Steps refused since construction.
  std::int64_t refused_steps() const;

  // State: exists from construction, keyed by parameter name. The views are of host memory,
  // valid until the next step or the next call of state().
  std::vector<TensorEntry> state() const;  // "state.<parameter>.<key>"
  void save(const std::filesystem::path& path) const;
  // All or nothing. save() always writes a checksum; for a file without one, `notify` is called.
  // The file also records which matrices began at zero; if that differs from the weights at
  // construction, CUDA graphs of earlier steps are void.
  void load(const std::filesystem::path& path);
  // Copies the entries with matching names; with `complete`, a missing one is an error. Returns the
  // names that were expected but absent.
  std::vector<std::string> load_state(const SafetensorsFile& file, bool complete = true);

  // What belongs next to state() in a caller's own file: the step count, the optimizer.
  std::map<std::string, std::string> metadata() const;

  std::size_t state_bytes() const;
  std::size_t workspace_bytes() const;

  // Of the last step. If it was refused, the global ones are from an earlier step.
  std::vector<MatrixDiagnostics> matrix_diagnostics() const;
  GlobalDiagnostics global_diagnostics() const;
  // Of every step, for callers who will not wait after each: from now on the diagnostics of the
  // last `steps` steps are kept (0: none, as at first), and take_history() returns those since it
  // was last called, the oldest first; refused steps are not among them. On CUDA each step copies
  // its results to page-locked memory, and only take_history() waits. Steps of a caller's graph are
  // not kept, and what is kept is gone when this is called again. There a refused step takes a
  // place, too, and a parameter that a step skipped has the norm of its weights as they are now.
  void keep_history(std::size_t steps);
  std::vector<StepDiagnostics> take_history();
  // Parameters that the last step skipped: no gradient, or one that is not finite.
  std::vector<std::string> skipped() const;

  std::string routing_table() const;

 private:
  struct Impl;

  void rebind_grad(std::size_t index, const void* data, DType dtype);
  void rebind_value(std::size_t index, void* data, DType dtype);

  std::unique_ptr<Impl> impl_;
  std::span<const Parameter> parameters_;  // of impl_
};

// One state tensor that a parameter would have.
struct PlannedState {
  std::string parameter, key;
  Shape shape;
  DType dtype = DType::f32;
};

// The state that these parameters would have, from shapes and types alone (data may be null).
// Throws if the method cannot update one of them.
std::vector<PlannedState> planned_state(std::span<const Parameter> parameters, const Method& method,
                                        const Routing& routing = {});
// Its bytes.
std::size_t planned_state_bytes(std::span<const Parameter> parameters, const Method& method,
                                const Routing& routing = {});

// What a step would ask of one parameter's gradient.
struct PlannedGradient {
  std::string parameter;
  // Whether the result for an element depends on that element alone, so that a part of the
  // parameter may be stepped by itself.
  bool elementwise = false;
  double most_gg = 0;  // a gradient whose squared norm exceeds it is refused
  // Of a batch of matrices that are stepped each by itself, how many: a part of the parameter that
  // holds whole ones may be stepped by itself too. 0: no batch.
  std::int64_t experts = 0;
};
// From shapes alone, as planned_state; frozen parameters have none.
std::vector<PlannedGradient> planned_gradients(std::span<const Parameter> parameters,
                                               const Method& method, const Routing& routing = {});

// One matrix, or block of a parameter that is split, on which a step would run Newton-Schulz.
struct PlannedMatrix {
  std::string parameter;
  std::int64_t rows = 0, columns = 0;  // as stored
  int iterations = 0;                  // at least 1
};
// From shapes alone, as planned_state.
std::vector<PlannedMatrix> planned_matrices(std::span<const Parameter> parameters,
                                            const Method& method, const Routing& routing = {});

}  // namespace rode
