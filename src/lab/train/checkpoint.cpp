// SPDX-License-Identifier: Apache-2.0
// Tensors to and from the file; the engine names and checks its own state.
#include "lab/train/checkpoint.h"

#include <cmath>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/grad_mode.h>

#include "lab/base/random.h"
#include "rode/error.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOperation = "checkpoint";
constexpr const char* kKey = "rode.train";
constexpr std::uint64_t kSeededSequence = 2;  // 1 is that of a run's beginning

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::f32;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    case at::kDouble: return DType::f64;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    case at::kBool: return DType::boolean;
    default:
      throw Error(ErrorKind::dtype, kOperation,
                  std::string("a tensor of ") + c10::toString(tensor.scalar_type()) +
                      "; expected a floating type, int64 or bytes");
  }
}

Shape shape_of(const at::Tensor& tensor) {
  return Shape(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
}

// Host copies of what is elsewhere, alive until the file is written.
class Entries {
 public:
  void add(std::string name, const at::Tensor& tensor) {
    const at::Tensor& host = held_.emplace_back(tensor.detach().to(at::kCPU).contiguous());
    entries_.push_back({std::move(name), {host.data_ptr(), shape_of(host), dtype_of(host)}});
  }
  void add(const std::vector<TensorEntry>& more) {
    entries_.insert(entries_.end(), more.begin(), more.end());
  }
  const std::vector<TensorEntry>& list() const { return entries_; }

 private:
  std::vector<at::Tensor> held_;
  std::vector<TensorEntry> entries_;
};

std::string describe(DType dtype, const Shape& shape) {
  return std::string(to_string(dtype)) + " " + to_string(shape);
}

void fill(const SafetensorsFile& file, const std::string& name, const at::Tensor& tensor) {
  const ConstTensorView view = file.tensor(name);
  if (!(view.shape == shape_of(tensor)) || view.dtype != dtype_of(tensor)) {
    throw Error(ErrorKind::state_mismatch, kOperation,
                "'" + name + "' is " + describe(view.dtype, view.shape) +
                    " in the file; expected " + describe(dtype_of(tensor), shape_of(tensor)) +
                    "; resume with the task that began the run");
  }
  const ::torch::NoGradGuard no_grad;
  tensor.copy_(at::from_blob(const_cast<void*>(view.data), tensor.sizes(),
                             at::TensorOptions().dtype(tensor.scalar_type())));
}

at::Generator generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Tensor bytes_of(const SafetensorsFile& file, const std::string& name) {
  const ConstTensorView view = file.tensor(name);
  const auto bytes = static_cast<std::int64_t>(view.bytes());
  return at::from_blob(const_cast<void*>(view.data), {bytes}, at::kByte).clone();
}

// Torch's own errors, of bytes that are not a state, as every other error.
void set_state(at::Generator& target, const SafetensorsFile& file, const std::string& name) {
  try {
    target.set_state(bytes_of(file, name));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::state_mismatch, kOperation,
                "'" + name + "' is not the state of a generator (" +
                    error.what_without_backtrace() +
                    "); resume with the version of Torch that began the run");
  }
}

// False where the file does not have it: it then restarts from seed and step.
bool restore(const SafetensorsFile& file, const std::string& name, at::Generator target,
             std::uint64_t seed, std::int64_t step) {
  if (file.contains(name)) {
    set_state(target, file, name);
    return true;
  }
  target.set_current_seed(derive_seed(seed, {kSeededSequence, static_cast<std::uint64_t>(step)}));
  return false;
}

Json to_json(const TrainState& state, std::int64_t averaged) {
  Json json = {{"format", 1},
               {"step", state.step},
               {"evaluated", state.evaluated},
               {"best_step", state.best_step},
               {"best_accuracy", state.best_accuracy},
               {"last_loss", state.last_loss},
               {"last_accuracy", state.last_accuracy},
               {"data", to_json(state.data)},
               {"log_bytes", state.log_bytes}};
  if (averaged > 0) {
    json["averaged"] = averaged;
  }
  if (averaged > 0 && state.averaged_loss) {
    json["averaged_loss"] = *state.averaged_loss;
    json["averaged_accuracy"] = state.averaged_accuracy;
  }
  if (std::isfinite(state.best_loss)) json["best_loss"] = state.best_loss;
  return json;
}

TrainState train_state(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  TrainState state;
  state.step = json.at("step");
  state.evaluated = json.at("evaluated");
  state.best_step = json.at("best_step");
  state.best_accuracy = json.at("best_accuracy");
  state.last_loss = json.at("last_loss");
  state.last_accuracy = json.at("last_accuracy");
  state.data = stream_position(json.at("data"));
  state.log_bytes = json.at("log_bytes");
  if (json.contains("best_loss")) state.best_loss = json.at("best_loss");
  if (json.contains("averaged_loss")) state.averaged_loss = json.at("averaged_loss");
  state.averaged_accuracy = json.value("averaged_accuracy", 0.0);
  return state;
}

TrainState read_state(const SafetensorsFile& file, const std::filesystem::path& path) {
  try {
    return train_state(file.metadata().at(kKey));
  } catch (const std::exception&) {  // missing, or not what the line above expects
    throw Error(ErrorKind::state_mismatch, kOperation,
                "file '" + path.string() + "' has no valid '" + kKey +
                    "' in its metadata; expected a checkpoint of rode train; remove it to resume "
                    "from the one before");
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, Model& model,
                     rode::torch::EngineOptimizer& optimizer, c10::Device device,
                     const TrainState& state, const WeightAverage& average, const RunRanks& ranks) {
  optimizer.bind();  // a run may be saved before its first step
  std::vector<std::pair<std::string, at::Tensor>> shared;
  if (!ranks.alone()) shared = optimizer.whole_state();
  if (!ranks.leads()) return;
  Entries entries;
  for (const auto& item : model.module().named_parameters()) {
    entries.add("param." + item.key(), item.value());
  }
  for (const auto& item : model.module().named_buffers()) {
    entries.add("buffer." + item.key(), item.value());
  }
  for (const auto& [name, tensor] : average.tensors()) entries.add("average." + name, tensor);
  entries.add("rng.cpu", generator(at::kCPU).get_state());
  if (device.is_cuda()) entries.add("rng.cuda", generator(device).get_state());
  rode::Optimizer& engine = optimizer.engine();
  if (ranks.alone()) entries.add(engine.state());
  for (const auto& [name, tensor] : shared) entries.add(name, tensor);
  auto metadata = engine.metadata();
  metadata[kKey] = to_json(state, average.count()).dump();
  write_safetensors(path, entries.list(), metadata);
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, Model& model,
                                 rode::torch::EngineOptimizer& optimizer, c10::Device device,
                                 std::uint64_t seed, WeightAverage& average) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  LoadedCheckpoint loaded{
      .state = read_state(file, path), .seeded = {}, .checksum_note = file.checksum_note()};
  const std::int64_t step = loaded.state.step;
  for (auto& item : model.module().named_parameters()) {
    fill(file, "param." + item.key(), item.value());
  }
  for (auto& item : model.module().named_buffers()) {
    fill(file, "buffer." + item.key(), item.value());
  }
  average.restart(model, nlohmann::json::parse(file.metadata().at(kKey)).value("averaged", 0));
  for (const auto& [name, tensor] : average.tensors()) fill(file, "average." + name, tensor);
  optimizer.bind();
  optimizer.load_state(file);
  optimizer.engine().set_steps_done(step);
  if (!restore(file, "rng.cpu", generator(at::kCPU), seed, step)) loaded.seeded.push_back("cpu");
  if (device.is_cuda() && !restore(file, "rng.cuda", generator(device), seed, step)) {
    loaded.seeded.push_back("cuda");
  }
  return loaded;
}

}  // namespace rode::lab
