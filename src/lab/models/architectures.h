// SPDX-License-Identifier: Apache-2.0
// The constructors behind make_model, one file each.
#pragma once

#include <memory>

#include "lab/models/initialise.h"
#include "lab/models/model.h"

namespace rode::lab {

std::unique_ptr<Model> make_gpt2(const ModelConfig& config, WeightSource& draw);
std::unique_ptr<Model> make_qwen2(const ModelConfig& config, WeightSource& draw);
// resnet50 and small-resnet.
std::unique_ptr<Model> make_resnet(const ModelConfig& config, WeightSource& draw);

}  // namespace rode::lab
