// SPDX-License-Identifier: Apache-2.0
// The fused kernels in a build without CUDA: nothing calls them; a call is an error.
#include "lab/models/fused/kernels.h"
#include "rode/error.h"

namespace rode::lab::fused {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::unsupported, "fused",
              "built without CUDA; configure with -DRODE_WITH_CUDA=ON");
}

}  // namespace

bool has_kernels(Device) { return false; }
void rms_norm_forward(const RmsNormForward&, void*) { refuse(); }
void rms_norm_backward(const RmsNormBackward&, void*) { refuse(); }
void swiglu_forward(const SwigluForward&, void*) { refuse(); }
void swiglu_backward(const SwigluBackward&, void*) { refuse(); }
void rotary_forward(const RotaryForward&, void*) { refuse(); }
void rotary_backward(const RotaryBackward&, void*) { refuse(); }
void cross_entropy(const CrossEntropy&, void*) { refuse(); }
void cast(const CastItem*, std::int64_t, Type, Type, void*) { refuse(); }

}  // namespace rode::lab::fused
