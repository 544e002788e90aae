// SPDX-License-Identifier: Apache-2.0
// Weights to and from safetensors files under Hugging Face's names.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "lab/models/model.h"
#include "rode/error.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

constexpr const char* kOperation = "weights";
constexpr std::string_view kHead = "lm_head.weight";

constexpr std::array<std::pair<DType, at::ScalarType>, 5> kTypes{{
    {DType::f32, at::kFloat},
    {DType::bf16, at::kBFloat16},
    {DType::f16, at::kHalf},
    {DType::f64, at::kDouble},
    {DType::i64, at::kLong},
}};

Shape shape_of(const at::Tensor& tensor) {
  return Shape(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
}

ConstTensorView view_of(const at::Tensor& tensor, const std::string& name) {
  for (const auto& [own, torch_type] : kTypes) {
    if (torch_type == tensor.scalar_type()) return {tensor.const_data_ptr(), shape_of(tensor), own};
  }
  throw Error(ErrorKind::dtype, kOperation,
              "'" + name + "' has a type that weight files do not support");
}

// Borrows the file's memory, which nothing writes to.
at::Tensor tensor_of(const ConstTensorView& view, const std::string& name) {
  for (const auto& [own, torch_type] : kTypes) {
    if (own != view.dtype) continue;
    const std::span<const std::int64_t> dims = view.shape.dims();
    return at::from_blob(const_cast<void*>(view.data), at::IntArrayRef(dims.data(), dims.size()),
                         at::TensorOptions().dtype(torch_type));
  }
  throw Error(ErrorKind::dtype, kOperation,
              "'" + name + "' is of type " + std::string(to_string(view.dtype)) +
                  "; expected F32, BF16, F16, F64 or I64");
}

// Under which name a file has it, if it has: files of the body alone leave out the first part.
class FileNames {
 public:
  explicit FileNames(const SafetensorsFile& file) {
    is_body_ = std::none_of(file.names().begin(), file.names().end(), [](const std::string& name) {
      return name.starts_with("transformer.") || name.starts_with("model.");
    });
  }

  std::string of(const std::string& name) const {
    for (const std::string_view prefix : {"transformer.", "model."}) {
      if (is_body_ && name.starts_with(prefix)) return name.substr(prefix.size());
    }
    return name;
  }

 private:
  bool is_body_ = false;
};

// Masks and tables that old versions of transformers wrote next to the weights.
bool is_constant(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

struct Loaded {
  at::Tensor target, value;
};

std::string embedding_name(const Model& model) {
  if (!model.config().tied) return {};
  if (model.config().kind == "gpt2") return "transformer.wte.weight";
  return model.config().kind == "qwen2" ? "model.embed_tokens.weight" : "";
}

// A head stored next to a tied embedding must equal it.
void check_head(const SafetensorsFile& file, const FileNames& names, const Model& model) {
  const ConstTensorView head = file.tensor(kHead);
  const std::string embedding = names.of(embedding_name(model));
  const ConstTensorView tied = file.tensor(embedding);
  if (head.shape == tied.shape && head.dtype == tied.dtype &&
      std::equal(static_cast<const char*>(head.data),
                 static_cast<const char*>(head.data) + head.bytes(),
                 static_cast<const char*>(tied.data))) {
    return;
  }
  throw Error(ErrorKind::state_mismatch, kOperation,
              "the file's 'lm_head.weight' is not its '" + embedding +
                  "', and the model ties them; set tied = false");
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const Model& model) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& entry : model.module().named_parameters()) {
    const at::Tensor value = entry.value().detach();
    out.emplace_back(entry.key(), model.is_stored_transposed(entry.key()) ? value.t() : value);
  }
  for (const auto& entry : model.module().named_buffers()) {
    out.emplace_back(entry.key(), entry.value());
  }
  return out;
}

void save_weights(const Model& model, const std::filesystem::path& safetensors) {
  auto tensors = stored_tensors(model);
  std::vector<TensorEntry> entries;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.to(at::kCPU).contiguous();
    entries.push_back({name, view_of(tensor, name)});
  }
  // transformers takes no file that does not say so.
  write_safetensors(safetensors, entries, {{"format", "pt"}});
}

void load_weights(Model& model, const std::filesystem::path& safetensors) {
  const SafetensorsFile file = SafetensorsFile::open(safetensors);
  const FileNames names(file);
  std::vector<Loaded> loaded;
  std::set<std::string> known;
  for (const auto& [name, target] : stored_tensors(model)) {
    const std::string own = names.of(name);
    known.insert(own);
    // Counters of batches are missing in files older than they are, and matter to nothing here.
    if (!file.contains(own) && own.ends_with(".num_batches_tracked")) continue;
    const ConstTensorView view = file.tensor(own);
    if (!(view.shape == shape_of(target))) {
      throw Error(ErrorKind::shape, kOperation,
                  "'" + own + "' has shape " + to_string(view.shape) + " in " +
                      safetensors.string() + "; the model's is " + to_string(shape_of(target)));
    }
    loaded.push_back({target, tensor_of(view, own)});
  }
  for (const std::string& name : file.names()) {
    if (known.contains(name) || is_constant(name)) continue;
    if (name == kHead && !embedding_name(model).empty()) {
      check_head(file, names, model);
      continue;
    }
    throw Error(ErrorKind::state_mismatch, kOperation,
                "'" + name + "' of " + safetensors.string() +
                    " is not part of the model; check kind, layers and tied");
  }
  const at::NoGradGuard no_grad;
  for (Loaded& entry : loaded) entry.target.copy_(entry.value);
}

void save_pretrained(const Model& model, const std::filesystem::path& folder,
                     std::int64_t positions) {
  std::filesystem::create_directories(folder);
  save_weights(model, folder / "model.safetensors");
  const std::string text = hugging_face_config(model.config(), positions).dump(2) + "\n";
  AtomicFile out(folder / "config.json", kOperation);
  out.write(std::as_bytes(std::span(text.data(), text.size())));
  out.commit();
}

}  // namespace rode::lab
