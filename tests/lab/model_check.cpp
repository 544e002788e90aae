// SPDX-License-Identifier: Apache-2.0
// Runs one of the lab's models on weights and an input of others, for tests to compare.
//
//   rode_lab_model_check WEIGHTS INPUT OUTPUT [FOLDER]
//
// INPUT: a safetensors file with tensors `input` and `target`, and in its metadata `task`, a task
// file whose [model] is meant, `train` (true: as in training) and `checkpoint` (true: activations
// are computed again). OUTPUT gets `logits`, `loss`, every gradient as grad.NAME in the layout of
// the files, and in training the buffers as they are afterwards. FOLDER gets the model as
// from_pretrained opens it.
#include <cstdio>
#include <exception>
#include <map>

#include <ATen/ATen.h>

#include "lab/models/model.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

at::Tensor tensor_in(const SafetensorsFile& file, const char* name) {
  const ConstTensorView view = file.tensor(name);
  const auto dims = view.shape.dims();
  return at::from_blob(const_cast<void*>(view.data), at::IntArrayRef(dims.data(), dims.size()),
                       at::TensorOptions().dtype(view.dtype == DType::i64 ? at::kLong : at::kFloat))
      .clone();
}

bool is_true(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  return found != file.metadata().end() && found->second == "true";
}

void write(const char* path, std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.detach().contiguous();
    if (tensor.scalar_type() == at::kDouble) tensor = tensor.to(at::kFloat);
    const Shape shape(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
    const DType dtype = tensor.scalar_type() == at::kLong ? DType::i64 : DType::f32;
    entries.push_back({name, ConstTensorView(tensor.const_data_ptr(), shape, dtype)});
  }
  write_safetensors(path, entries);
}

void run(int count, char** arguments) {
  const SafetensorsFile given = SafetensorsFile::open(arguments[2]);
  const Task task = parse_task(given.metadata().at("task"), "check", arguments[2]);
  const auto model = make_model(task.model, 1);
  load_weights(*model, arguments[1]);
  if (count > 4) save_pretrained(*model, arguments[4]);
  if (is_true(given, "checkpoint")) model->set_checkpoint_activations(true);
  const bool trains = is_true(given, "train");
  model->module().eval();

  at::Tensor input = tensor_in(given, "input");
  if (is_true(given, "double")) {
    model->module().to(at::kDouble);
    input = input.to(at::kDouble);
  }
  std::map<std::string, at::Tensor> out;
  {
    const at::NoGradGuard no_grad;
    out["logits"] = model->logits(input);
  }
  model->module().train(trains);
  const at::Tensor loss = model->loss(input, tensor_in(given, "target"));
  loss.backward();
  out["loss"] = loss;
  for (const auto& entry : model->module().named_parameters()) {
    const at::Tensor& grad = entry.value().grad();
    out["grad." + entry.key()] = model->is_stored_transposed(entry.key()) ? grad.t() : grad;
  }
  for (const auto& entry : model->module().named_buffers()) out[entry.key()] = entry.value();
  write(arguments[3], out);
}

}  // namespace
}  // namespace rode::lab

int main(int count, char** arguments) {
  if (count != 4 && count != 5) {
    std::fputs("usage: rode_lab_model_check WEIGHTS INPUT OUTPUT [FOLDER]\n", stderr);
    return 2;
  }
  try {
    rode::lab::run(count, arguments);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
