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
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include "lab/base/random.h"
#include "lab/models/autocast.h"
#include "lab/task/model_size.h"
#include "lab/train/gradient_sums.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Sequences of random numbers out of a run's seed.
constexpr std::uint64_t kTorchSequence = 1;
constexpr std::uint64_t kRankSequence = 3;  // 2 is that of a checkpoint without generators

template <class Value>
at::Tensor borrow(const std::vector<Value>& values, std::int64_t offset, at::IntArrayRef sizes,
                  at::ScalarType type) {
  return at::from_blob(const_cast<Value*>(values.data()) + offset, sizes,
                       at::TensorOptions().dtype(type));
}

// From page-locked memory, so that the host continues at once: a copy from anywhere else waits for
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

}  // namespace

c10::Device choose_device(const std::string& name, int local_rank) {
  const bool cuda = at::globalContext().hasCUDA();
  if (name == "cpu" || (name == "auto" && !cuda)) return at::kCPU;
  if (!cuda) {
    throw Error(ErrorKind::unsupported, "train",
                "no usable CUDA device; train with --device cpu, or use a LibTorch with CUDA on a "
                "machine that has a GPU");
  }
  const int devices = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  if (local_rank >= devices) {
    throw Error(ErrorKind::unsupported, "train",
                "rank " + std::to_string(local_rank) +
                    " of this machine has no CUDA device: the machine has " +
                    std::to_string(devices) + ", and every rank needs its own; start at most " +
                    std::to_string(devices) + " ranks here, or train with --device cpu");
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

Session::Session(const TrainOptions& options, const Method& method, RunRanks ranks)
    : task_(options.task),
      seed_(options.seed),
      ranks_(std::move(ranks)),
      device_(choose_device(options.device, ranks_.local())) {
  require_memory(task_, device_.is_cpu(), machine_bytes());
  if (options.threads > 0) at::set_num_threads(options.threads);
  // Operations on "cuda" without a number, the engine's and Torch's, mean the current device.
  if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  seed_generators(derive_seed(options.seed, {kTorchSequence}));
  model_ = make_model(task_.model, options.seed);
  if (!options.weights.empty()) load_weights(*model_, options.weights);
  model_->set_checkpoint_activations(task_.train.checkpoint_activations);
  if (task_.train.parameters == "bf16") model_->module().to(at::kBFloat16);
  model_->module().to(device_);
  model_->module().train();
  optimizer_ = rode::torch::make_optimizer(model_->module(), method, {.route = task_.train.route},
                                           {}, ranks_.group());
  if (!ranks_.alone()) buckets_.emplace(trained_parameters(model_->module()), ranks_.group());
}

void Session::seed_generators(std::uint64_t seed) const {
  at::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_current_seed(seed);
  if (device_.is_cuda()) {
    at::Generator(at::globalContext().defaultGenerator(device_)).set_current_seed(seed);
  }
}

void Session::begin_step(std::int64_t step) {
  if (ranks_.alone()) return;
  seed_generators(derive_seed(seed_, {kRankSequence, static_cast<std::uint64_t>(step),
                                      static_cast<std::uint64_t>(ranks_.rank())}));
}

void Session::synchronize_ranks() {
  if (ranks_.alone()) return;
  const ::torch::NoGradGuard no_grad;
  std::vector<at::Tensor> all = model_->module().parameters();
  for (const at::Tensor& buffer : model_->module().buffers()) all.push_back(buffer);
  for (at::Tensor& tensor : all) tensor = tensor.detach();
  ranks_.broadcast(all);
}

at::Tensor Session::nothing() const {
  return at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device_));
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
  // The loss by hand: the same pass finds which images were right.
  const at::Tensor logits = model_->logits(images).to(at::kFloat);
  return {at::cross_entropy_loss(logits, labels), (logits.argmax(1) == labels).sum()};
}

std::optional<Unread> Session::gradients(const Batch& batch, const Stop& stop) {
  optimizer_->zero_grad();
  std::optional<ForwardState> before;
  if (task_.train.accumulate > 1) before.emplace(model_->module(), device_);
  const std::int64_t most = task_.train.batch / task_.train.accumulate;
  std::optional<GradientSums> sums;
  if (task_.train.accumulate > 1 && task_.train.parameters == "bf16") {
    sums.emplace(trained_parameters(model_->module()));
  }
  GradientBuckets* const ranks = buckets_ ? &*buckets_ : nullptr;
  at::Tensor sum;
  const auto [first, own] = ranks_.share_of(batch.rows);
  for (std::int64_t from = first; from < first + own; from += most) {
    if (from > first && stop && stop()) {
      if (before) before->restore();
      return std::nullopt;
    }
    // The last batch of an epoch may be smaller, and its last part.
    const std::int64_t rows = std::min(most, first + own - from);
    const double parts = static_cast<double>(batch.rows) / static_cast<double>(rows);
    const Part result = forward(batch, from, rows);
    if (ranks != nullptr && !sums && from + rows == first + own) ranks->begin();
    (result.loss / parts).backward();
    if (sums) sums->take();
    const at::Tensor values = values_of(result.loss.detach(), result.hits, parts);
    sum = sum.defined() ? sum + values : values;
  }
  if (own == 0) {  // of the last batch of an epoch, which may have fewer rows than there are ranks
    sum = nothing();
    for (const at::Tensor& parameter : ranks->parameters()) {
      parameter.mutable_grad() = at::zeros_like(parameter.detach());
    }
    if (sums) sums->take();
    if (!sums) ranks->begin();
  }
  if (sums) sums->give_back(ranks);
  if (!sums && ranks != nullptr) ranks->finish();
  return Unread{sum, batch.rows};
}

std::vector<Measured> Session::read(const std::vector<Unread>& unread) const {
  std::vector<at::Tensor> values;
  for (const Unread& one : unread) values.push_back(one.values);
  const at::Tensor host = at::stack(values).to(at::kCPU);
  const double* const own = host.const_data_ptr<double>();
  const std::vector<double> data = ranks_.sum({own, own + host.numel()});
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
  // Statistics of normalisation differ between ranks; the run's are those of rank 0.
  ranks_.broadcast(model_->module().buffers());
  batches.rewind_evaluation();
  std::vector<Unread> unread;
  std::int64_t samples = 0;
  bool stopped = false;
  int turn = 0;  // whose part it is; others' parts count nothing here, and read() adds them up
  while (const auto batch = batches.next_evaluation(task_.train.batch / task_.train.accumulate)) {
    stopped = turn == 0 && stop && stop();
    if (stopped) break;
    at::Tensor values = nothing();
    if (turn == ranks_.rank()) {
      const Part part = forward(*batch, 0, batch->rows);
      values = values_of(part.loss, part.hits, 1);
    }
    unread.push_back({values, batch->rows});
    turn = (turn + 1) % ranks_.count();
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

std::vector<std::string> Session::parameter_names() {
  std::vector<std::string> out;
  for_each_group(*optimizer_, [&](const auto&, const auto& options) {
    out.insert(out.end(), options.names.begin(), options.names.end());
  });
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
