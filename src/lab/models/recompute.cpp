// SPDX-License-Identifier: Apache-2.0
// The autograd function of activation checkpointing.
#include "lab/models/recompute.h"

#include <mutex>

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "lab/models/autocast.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// torch's generator as it was in the first run, and afterwards as it is now.
class ReplayedRandom {
 public:
  ReplayedRandom(at::Device device, const at::Tensor& state) : device_(device) {
    if (!state.defined()) return;
    before_ = generator_state(device);
    set_generator_state(device, state);
  }
  ~ReplayedRandom() {
    if (before_.defined()) set_generator_state(device_, before_);
  }
  ReplayedRandom(const ReplayedRandom&) = delete;
  ReplayedRandom& operator=(const ReplayedRandom&) = delete;

 private:
  at::Device device_;
  at::Tensor before_;
};

// How the first run was made; autograd's context holds it by reference count.
struct FirstRun : ::torch::CustomClassHolder {
  Block block;
  AutocastState autocast;
  at::Tensor generator;  // undefined: nothing random in it
};

// What the graph of the second run leads to: the input cut off from its own graph.
at::Tensor leaf_of(const at::Tensor& input) {
  return input.detach().requires_grad_(input.requires_grad());
}

class Recompute : public ::torch::autograd::Function<Recompute> {
 public:
  // Autograd calls it without recording. `variables`: the input, then the parameters.
  static at::Tensor forward(AutogradContext* context, at::TensorList variables,
                            const c10::intrusive_ptr<FirstRun>& run) {
    context->save_for_backward(variables.vec());
    context->saved_data["run"] = c10::IValue::make_capsule(run);
    const AutocastScope scope(variables[0].device().type(), run->autocast);
    return run->block(variables[0]);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorKind::unsupported, "recompute",
                  "a second derivative was requested; blocks with activation checkpointing have "
                  "only the first; turn checkpoint_activations off");
    }
    const auto run =
        c10::static_intrusive_pointer_cast<FirstRun>(context->saved_data["run"].toCapsule());
    variable_list variables = context->get_saved_variables();
    variables[0] = leaf_of(variables[0]);
    at::Tensor output;
    {
      const at::AutoGradMode record(true);
      const AutocastScope scope(variables[0].device().type(), run->autocast);
      const ReplayedRandom random(variables[0].device(), run->generator);
      output = run->block(variables[0]);
    }
    variable_list wanted;
    for (const at::Tensor& variable : variables) {
      if (variable.requires_grad()) wanted.push_back(variable);
    }
    const variable_list found =
        ::torch::autograd::grad({output}, wanted, grads, /*retain_graph=*/false,
                                /*create_graph=*/false, /*allow_unused=*/true);
    // One gradient per argument; the run has none.
    variable_list out(variables.size() + 1);
    std::size_t next = 0;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (variables[i].requires_grad()) out[i] = found[next++];
    }
    return out;
  }
};

}  // namespace

at::Tensor recompute(const Block& block, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, bool random) {
  if (!at::GradMode::is_enabled()) return block(input);
  auto run = c10::make_intrusive<FirstRun>();
  run->block = block;
  run->autocast = AutocastState::of(input.device().type());
  if (random) run->generator = generator_state(input.device());
  variable_list variables{input};
  variables.insert(variables.end(), parameters.begin(), parameters.end());
  // A list of torch's own: tensors in a std::vector would be no arguments to autograd.
  return Recompute::apply(at::TensorList(variables), run);
}

}  // namespace rode::lab
