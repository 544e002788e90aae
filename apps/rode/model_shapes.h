// SPDX-License-Identifier: Apache-2.0
// The parameters of known models, by name and shape: what state and step cost depend on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rode/parameter.h"
#include "rode/routing.h"

namespace rode::cli {

struct ModelTensor {
  std::string name;
  Shape shape;
};

struct Model {
  std::string name;
  Route route = Route::language;  // how the model's kind is routed
  std::vector<ModelTensor> tensors;

  // Parameters without memory, for planning; weights and gradients of this type.
  std::vector<Parameter> parameters(DType dtype = DType::f32) const;
};

// "qwen2-114m", "gpt2", "resnet50", "qwen2-1.5b", or "MxN[xCOUNT],..." for plain matrices.
// Anything else is wrong usage.
Model model_by_name(std::string_view text);

// For help texts.
inline constexpr std::string_view kShapesHelp =
    "qwen2-114m, gpt2, resnet50, qwen2-1.5b, or MxNxCOUNT[,...]";

}  // namespace rode::cli
