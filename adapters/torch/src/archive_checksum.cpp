// SPDX-License-Identifier: Apache-2.0
// Options as text and tensors as bytes, each preceded by its length, through one hash.
#include "archive_checksum.h"

#include <span>

#include "core/checksum.h"
#include "rode/torch/optimizer.h"
#include "tensors.h"

namespace rode::torch {
namespace {

// Lengths in front: no two contents give the same bytes.
class Contents {
 public:
  void text(std::string_view text) { bytes(text.data(), text.size()); }
  void number(std::int64_t value) { bytes(&value, sizeof value); }
  void tensor(const at::Tensor& tensor) {
    const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
    text(c10::toString(host.scalar_type()));
    for (const std::int64_t extent : host.sizes()) number(extent);
    bytes(host.const_data_ptr(), host.nbytes());
  }
  void options(const GroupOptions& options, const std::map<std::string, std::string>& values) {
    text(options.method().name());
    for (const auto& [key, value] : values) {
      text(key);
      text(value);
    }
    number(static_cast<std::int64_t>(options.rule));
    number(static_cast<std::int64_t>(options.route));
    number(static_cast<std::int64_t>(options.layout));
    number(options.couple_lr_rho ? 1 : 0);
    const double initial = options.initial_lr.value_or(-1);
    bytes(&initial, sizeof initial);
    for (const std::string& name : options.names) text(name);
  }
  std::string digits() const { return std::string(kChecksumTag) + sum_.digits(); }

 private:
  void bytes(const void* data, std::size_t size) {
    const std::uint64_t length = size;
    sum_.add(std::as_bytes(std::span(&length, 1)));
    sum_.add(std::span(static_cast<const std::byte*>(data), size));
  }

  Checksum sum_;
};

}  // namespace

std::string archive_checksum(std::int64_t steps,
                             const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                             const std::vector<const GroupOptions*>& options,
                             const std::vector<std::map<std::string, std::string>>& values,
                             const ParamStates& states) {
  Contents contents;
  contents.number(steps);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    contents.options(*options[g], values[g]);
    for (const at::Tensor& parameter : groups[g].params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      const auto* state =
          found == states.end() ? nullptr : dynamic_cast<const ParamState*>(found->second.get());
      contents.number(state == nullptr ? 0 : static_cast<std::int64_t>(state->tensors.size()));
      if (state == nullptr) continue;
      for (const auto& [key, tensor] : state->tensors) {
        contents.text(key);
        contents.tensor(tensor);
      }
    }
  }
  return contents.digits();
}

}  // namespace rode::torch
