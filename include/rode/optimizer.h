// SPDX-License-Identifier: Apache-2.0
// The driver: routes parameters, owns their state, steps them.
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

// Memory of the caller's for one state tensor, where the engine shall keep it.
struct StateMemory {
  void* data = nullptr;  // contiguous, on the engine's device; outlives the optimizer
  bool kept = false;     // holds state of an earlier optimizer; false: holds zeros
};
using StateAllocator = std::function<StateMemory(std::string_view parameter, std::string_view key,
                                                 const Shape& shape, DType dtype)>;

struct EngineOptions {
  // Where parameters and gradients lie, and where state will.
  Device device = Device::cpu;
  void* stream = nullptr;  // CUDA: a cudaStream_t that steps run on; null: the default stream
  int threads = 0;         // 0: every core the process may use. Results do not depend on it.
  // Of gradients alone: weights that are not finite are an error with either.
  OnBadGradient on_non_finite = OnBadGradient::refuse;
  OnBadGradient on_missing = OnBadGradient::refuse;
  // Same-shape matrices as one batch with symmetric products; false: the plain loop,
  // one matrix after the other with full products. They agree to rounding.
  bool batched = true;
  // Called for what a user should hear once: doubtful options, a held zero matrix, ...
  std::function<void(std::string_view)> notify = {};
  // Asked at construction for the memory of every state tensor; null: the engine's own.
  StateAllocator state_memory = {};
};

// For schedulers that move lr alone, as torch's do: lr_rho and lr_rest act times lr / from.
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

// On CUDA a step is work that is enqueued: step() returns before it is done, and later work
// on the same stream finds its result. Nothing is copied to the host by itself, so a gradient
// that is not finite is not known to step(): such a step changes no weight, no state and no
// count, on the device, and is counted as refused. The caller learns of it when it likes,
// from check(). Steps after it are steps as any other.
//
// Weights must be finite, before a step and after it. Where measuring reads them (RODE, Muon with
// a constraint), a step on weights that are not is refused like one with a bad gradient. Elsewhere,
// and where a step overflows, it is known only from the sums of the step itself: that step has
// been made and counts, and step(), on CUDA check(), throws an Error with changed() = true.
// The weights are of no use then: restore a checkpoint.
//
// What reads results (check, steps_done, refused_steps, state, metadata, save, the
// diagnostics, skipped) waits for the steps enqueued so far. So do load and construction.
// On the CPU every step is done, and checked, when step() returns.
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
  // anything has changed, except where the result is not finite: Error::changed() tells (what
  // `notify` throws comes after the step, too). On CUDA it throws what the host can know, such
  // as a missing gradient; the rest comes from check().
  void step(double multiplier = 1.0);

  // Throws the error of a step that was refused since the last check, or whose result is not
  // finite: what step() throws on the CPU. A refused step has changed nothing; the optimizer
  // goes on as if it had not been. Of several, one that has changed the weights is named, else
  // the first one found. Also tells `notify` what is new. On the CPU
  // there is never anything left to say.
  void check();

  // CUDA: where steps run from now on, after those enqueued before; the stream left must
  // still exist, and not be one that is being captured. Where the new one is, the host waits
  // for those steps.
  void set_stream(void* stream);

  // A caller may capture step() into a CUDA graph of its own, after one step outside of a
  // capture, and replay it for as long as the optimizer lives. A replay is a whole step, counted
  // and gated as any other. It steps the weights and takes the gradients bound when it was
  // captured. Its multiplier is that of the last step outside of a capture, or the one set here
  // since (the argument of a captured step() is not used). Its options are those of the last
  // step, captured or not, or the ones sent since. What is read or set here must come after the
  // replays in the order of the streams: set_stream where they run on another.
  void set_multiplier(double multiplier);
  void send_options();
  bool capturing() const;  // whether the stream of the steps is being captured

  // Gradients (and weights) may move between steps; `index` counts the parameters in
  // the order given, over all groups. A null gradient means "none this step". Tied
  // entries are one parameter: binding any of them binds it. Binding again what is bound
  // costs a comparison, so callers need not look for changes themselves.
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

  // Changes a live option of a group: rates, decays, momentum. `method` has the options as
  // given here: how other rates follow lr (RateCoupling) does not show in it.
  void set_option(std::size_t group, std::string_view key, std::string_view value);
  void set_option(std::size_t group, std::string_view key, double value);  // no text: fast
  void set_coupling(std::size_t group, const RateCoupling& coupling);
  const Method& method(std::size_t group = 0) const;
  std::size_t group_count() const;

  // Steps performed; a refused one is not.
  std::int64_t steps_done() const;
  // Counts on from here: for state that came through `state_memory`. The count selects the
  // random stream of stochastic rounding.
  void set_steps_done(std::int64_t steps);
  // Steps refused since construction.
  std::int64_t refused_steps() const;

  // State: exists from construction, keyed by parameter name. The views are of host memory,
  // valid until the next step or the next call of state().
  std::vector<TensorEntry> state() const;  // "state.<parameter>.<key>"
  void save(const std::filesystem::path& path) const;
  // All or nothing. A file without a checksum, which save() always writes, is told to `notify`.
  void load(const std::filesystem::path& path);
  // Copies entries of the given names; `complete` refuses a missing one. Returns the
  // names that were expected and absent.
  std::vector<std::string> load_state(const SafetensorsFile& file, bool complete = true);

  // What belongs beside state() in a file of the caller's: the step count, the optimizer.
  std::map<std::string, std::string> metadata() const;

  std::size_t state_bytes() const;
  std::size_t workspace_bytes() const;

  // Of the last step. Where that was refused: the global ones of an earlier step.
  std::vector<MatrixDiagnostics> matrix_diagnostics() const;
  GlobalDiagnostics global_diagnostics() const;
  // Parameters that it left alone: no gradient, or one that is not finite.
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

// The state these parameters would have, from shapes and types alone (data may be null). Throws
// where the method cannot step one of them.
std::vector<PlannedState> planned_state(std::span<const Parameter> parameters, const Method& method,
                                        const Routing& routing = {});
// Its bytes.
std::size_t planned_state_bytes(std::span<const Parameter> parameters, const Method& method,
                                const Routing& routing = {});

}  // namespace rode
