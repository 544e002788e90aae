// SPDX-License-Identifier: Apache-2.0
// Forward, backward, step and evaluation on LibTorch.
#include "lab/train/session.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include "lab/base/random.h"
#include "lab/models/autocast.h"
#include "lab/task/model_size.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Sequences of random numbers out of a run's seed.
constexpr std::uint64_t kTorchSequence = 1;

template <class Value>
at::Tensor borrow(const std::vector<Value>& values, std::int64_t offset, at::IntArrayRef sizes,
                  at::ScalarType type) {
  return at::from_blob(const_cast<Value*>(values.data()) + offset, sizes,
                       at::TensorOptions().dtype(type));
}

// From page-locked memory, so that the host goes on at once: a copy from anywhere else waits for
// all that the GPU has still to do.
at::Tensor sent(const at::Tensor& host, c10::Device device) {
  if (!device.is_cuda()) return host.to(device);
  return host.pin_memory().to(device, /*non_blocking=*/true);
}

void for_each_group(rode::torch::EngineOptimizer& optimizer,
                    const std::function<void(const std::vector<at::Tensor>&,
                                             const rode::torch::GroupOptions&)>& visit) {
  for (const auto& group : optimizer.param_groups()) {
    visit(group.params(), dynamic_cast<const rode::torch::GroupOptions&>(group.options()));
  }
}

// Loss over the number of parts, and hits: in double, as numbers of the host would be added.
at::Tensor values_of(const at::Tensor& loss, const at::Tensor& hits, double parts) {
  const at::Tensor share = loss.to(at::kDouble) / parts;
  return at::stack({share, hits.defined() ? hits.to(at::kDouble) : at::zeros_like(share)});
}

// What a forward pass moves besides gradients, random numbers and statistics, as it was when this
// was made: a batch that is dropped half-way leaves no trace.
class ForwardState {
 public:
  ForwardState(const ::torch::nn::Module& module, c10::Device device) {
    keep_generator(at::kCPU);
    if (device.is_cuda()) keep_generator(device);
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.clone());
  }

  void restore() {
    const ::torch::NoGradGuard no_grad;
    for (auto& [generator, state] : generators_) generator.set_state(state);
    for (auto& [buffer, value] : buffers_) buffer.copy_(value);
  }

 private:
  void keep_generator(c10::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    generators_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // with their values
};

// Sums of bf16 gradients in fp32: of a running sum in bf16 the last parts of a batch would move
// only the last of its eight bits. Rounded once, at the end.
class GradientSums {
 public:
  explicit GradientSums(rode::torch::EngineOptimizer& optimizer) {
    for_each_group(optimizer, [&](const auto& parameters, const auto&) {
      for (const at::Tensor& parameter : parameters) sums_.emplace_back(parameter, at::Tensor());
    });
  }

  // Takes the gradients away: the next part begins at zero.
  void take() {
    const ::torch::NoGradGuard no_grad;
    for (auto& [parameter, sum] : sums_) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (sum.defined()) {
        sum.add_(gradient);
      } else {
        sum = gradient.to(at::kFloat);
      }
      gradient.reset();
    }
  }
  void give_back() {
    for (auto& [parameter, sum] : sums_) {
      if (sum.defined()) parameter.mutable_grad() = sum.to(parameter.scalar_type());
      sum.reset();
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> sums_;  // parameter, fp32 sum
};

}  // namespace

c10::Device choose_device(const std::string& name) {
  const bool cuda = at::globalContext().hasCUDA();
  if (name == "cpu" || (name == "auto" && !cuda)) return at::kCPU;
  if (!cuda) {
    throw Error(ErrorKind::unsupported, "train",
                "no usable CUDA device; train with --device cpu, or use a LibTorch with CUDA on a "
                "machine that has a GPU");
  }
  return {at::kCUDA, 0};
}

Session::Session(const TrainOptions& options, const Method& method)
    : task_(options.task), device_(choose_device(options.device)) {
  require_memory(task_, device_.is_cpu(), machine_bytes());
  if (options.threads > 0) at::set_num_threads(options.threads);
  const std::uint64_t seed = derive_seed(options.seed, {kTorchSequence});
  at::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_current_seed(seed);
  if (device_.is_cuda()) {
    at::Generator(at::globalContext().defaultGenerator(device_)).set_current_seed(seed);
  }
  model_ = make_model(task_.model, options.seed);
  if (!options.weights.empty()) load_weights(*model_, options.weights);
  model_->set_checkpoint_activations(task_.train.checkpoint_activations);
  if (task_.train.parameters == "bf16") model_->module().to(at::kBFloat16);
  model_->module().to(device_);
  model_->module().train();
  optimizer_ = rode::torch::make_optimizer(model_->module(), method, {.route = task_.train.route});
}

int Session::threads() const { return at::get_num_threads(); }

Session::Part Session::forward(const Batch& batch, std::int64_t from, std::int64_t rows) {
  std::optional<AutocastScope> autocast;
  if (task_.train.precision == "bf16") {
    autocast.emplace(device_.type(), AutocastState{true, at::kBFloat16}, CastCache::own);
  }
  if (task_.is_language()) {
    const std::int64_t width = task_.data.sequence + 1;
    const at::Tensor tokens =
        sent(borrow(batch.tokens, from * width, {rows, width}, at::kLong), device_);
    const at::Tensor input = tokens.slice(1, 0, width - 1).contiguous();
    return {model_->loss(input, tokens.slice(1, 1, width).contiguous()), {}};
  }
  const std::int64_t side = task_.data.image_size;
  at::Tensor images = sent(
      borrow(batch.pixels, from * 3 * side * side, {rows, 3, side, side}, at::kFloat), device_);
  if (task_.train.parameters == "bf16") images = images.to(at::kBFloat16);
  const at::Tensor labels = sent(borrow(batch.labels, from, {rows}, at::kLong), device_);
  // The loss by hand: the same pass tells which images were right.
  const at::Tensor logits = model_->logits(images).to(at::kFloat);
  return {at::cross_entropy_loss(logits, labels), (logits.argmax(1) == labels).sum()};
}

std::optional<Unread> Session::gradients(const Batch& batch, const Stop& stop) {
  optimizer_->zero_grad();
  std::optional<ForwardState> before;
  if (task_.train.accumulate > 1) before.emplace(model_->module(), device_);
  const std::int64_t most = task_.train.batch / task_.train.accumulate;
  std::optional<GradientSums> sums;
  if (task_.train.accumulate > 1 && task_.train.parameters == "bf16") sums.emplace(*optimizer_);
  at::Tensor sum;
  for (std::int64_t from = 0; from < batch.rows; from += most) {
    if (from > 0 && stop && stop()) {
      if (before) before->restore();
      return std::nullopt;
    }
    // The last batch of an epoch may be smaller, and its last part.
    const std::int64_t rows = std::min(most, batch.rows - from);
    const double parts = static_cast<double>(batch.rows) / static_cast<double>(rows);
    const Part result = forward(batch, from, rows);
    (result.loss / parts).backward();
    if (sums) sums->take();
    const at::Tensor values = values_of(result.loss.detach(), result.hits, parts);
    sum = sum.defined() ? sum + values : values;
  }
  if (sums) sums->give_back();
  return Unread{sum, batch.rows};
}

std::vector<Measured> Session::read(const std::vector<Unread>& unread) const {
  std::vector<at::Tensor> values;
  for (const Unread& one : unread) values.push_back(one.values);
  const at::Tensor host = at::stack(values).to(at::kCPU);
  const double* const data = host.const_data_ptr<double>();
  std::vector<Measured> out;
  for (std::size_t i = 0; i < unread.size(); ++i) {
    Measured measured{.loss = data[2 * i]};
    if (!task_.is_language()) {
      measured.accuracy = data[2 * i + 1] / static_cast<double>(unread[i].rows);
    }
    out.push_back(measured);
  }
  return out;
}

void Session::clip() {
  if (task_.train.clip <= 0) return;
  std::vector<at::Tensor> all;
  for_each_group(*optimizer_, [&](const auto& parameters, const auto&) {
    all.insert(all.end(), parameters.begin(), parameters.end());
  });
  ::torch::nn::utils::clip_grad_norm_(all, task_.train.clip);
}

void Session::step(double multiplier) {
  clip();
  optimizer_->step(multiplier);
}

void Session::set_momentum(double momentum) {
  for (auto& group : optimizer_->param_groups()) {
    dynamic_cast<rode::torch::GroupOptions&>(group.options()).set_number("momentum", momentum);
  }
}

void Session::check() { optimizer_->check(); }

void Session::synchronize() const {
  if (device_.is_cuda()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

std::optional<Measured> Session::evaluate(BatchSource& batches, const Stop& stop,
                                          const Done& done) {
  const ::torch::NoGradGuard no_grad;
  model_->module().eval();
  batches.rewind_evaluation();
  std::vector<Unread> unread;
  std::int64_t samples = 0;
  bool stopped = false;
  while (const auto batch = batches.next_evaluation(task_.train.batch / task_.train.accumulate)) {
    stopped = stop && stop();
    if (stopped) break;
    const Part part = forward(*batch, 0, batch->rows);
    unread.push_back({values_of(part.loss, part.hits, 1), batch->rows});
    samples += batch->rows;
    if (done) done(samples);
  }
  model_->module().train();
  if (stopped || unread.empty()) return std::nullopt;
  double loss = 0;
  double right = 0;
  std::int64_t rows = 0;
  const std::vector<Measured> parts = read(unread);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    loss += parts[i].loss * static_cast<double>(unread[i].rows);
    // A whole number again.
    right += std::round(parts[i].accuracy.value_or(0) * static_cast<double>(unread[i].rows));
    rows += unread[i].rows;
  }
  Measured measured{.loss = loss / static_cast<double>(rows)};
  if (!task_.is_language()) measured.accuracy = right / static_cast<double>(rows);
  return measured;
}

WeightNorms Session::norms() {
  const ::torch::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  std::vector<std::string> names;  // empty: not of the matrix rule
  for_each_group(*optimizer_, [&](const auto& parameters, const auto& options) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      norms.push_back(at::linalg_vector_norm(parameters[i], 2, std::nullopt, false, at::kDouble));
      const bool matrix = options.rule == rode::torch::GroupRule::matrix;
      names.push_back(matrix && i < options.names.size() ? options.names[i] : "");
    }
  });
  const at::Tensor host = at::stack(norms).to(at::kCPU);  // one wait for the device
  WeightNorms out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double norm = host.const_data_ptr<double>()[i];
    out.all += norm * norm;
    if (!names[i].empty()) out.matrices.emplace_back(names[i], norm);
  }
  out.all = std::sqrt(out.all);
  return out;
}

std::int64_t Session::parameters() {
  std::int64_t count = 0;
  for_each_group(*optimizer_, [&](const auto& parameters, const auto&) {
    for (const at::Tensor& parameter : parameters) count += parameter.numel();
  });
  return count;
}

std::optional<std::int64_t> Session::torch_peak_bytes() const {
  if (!device_.is_cuda()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return stats.allocated_bytes[kAll].peak;
}

std::int64_t Session::peak_bytes() const {
  if (const auto torch_peak = torch_peak_bytes()) {
    // State lies in Torch's tensors. The workspace does not: the engine takes it from CUDA when it
    // is made, and keeps it.
    return *torch_peak + static_cast<std::int64_t>(optimizer_->engine().workspace_bytes());
  }
  struct rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  constexpr std::int64_t kKibibyte = 1024;  // Linux's unit
  return usage.ru_maxrss * kKibibyte;
}

}  // namespace rode::lab
