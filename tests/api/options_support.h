// SPDX-License-Identifier: Apache-2.0
// The options of a method, and for every option a valid value that is not the default, with the
// other options that it requires.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "rode/method.h"

namespace rode::test {

inline std::map<std::string, std::string> values(const Method& method) {
  std::map<std::string, std::string> out;
  for (const OptionInfo& info : method.options()) out[info.key] = info.value;
  return out;
}

// Those that were given, as text.
inline Settings settings_of(const Method& method) {
  Settings out;
  for (const OptionInfo& info : method.options()) {
    if (info.set) out.emplace_back(info.key, info.value);
  }
  return out;
}

struct Alternative {
  std::string value;
  Settings needs = {};
};

inline Alternative alternative(std::string_view optimizer, const OptionInfo& info) {
  static const std::map<std::string, Alternative, std::less<>> table{
      // A number whose shortest text needs 17 digits.
      {"lr", {"0.30000000000000004"}},
      {"lr_rho", {"0.30000000000000004"}},
      {"lr_rest", {"0.30000000000000004"}},
      {"weight_decay", {"0.30000000000000004"}},
      {"weight_decay_rest", {"0.30000000000000004"}},
      {"momentum", {"0.30000000000000004"}},
      {"gamma", {"0.30000000000000004"}},
      {"alpha", {"0.30000000000000004"}},
      {"clip_threshold", {"0.30000000000000004"}},
      {"decay_rate", {"-0.30000000000000004"}},
      {"snr_min", {"0.30000000000000004"}},
      {"floor", {"0.30000000000000004"}},
      {"radius_brake", {"0.30000000000000004"}},
      {"radius_pull", {"0.30000000000000004"}},
      {"radius_scope", {"rows", {{"reproject", "final"}}}},
      {"eps", {"0.30000000000000004"}},
      {"eps_ns", {"0.30000000000000004"}},
      {"eps_rest", {"0.30000000000000004"}},
      {"betas", {"0.30000000000000004,0.5"}},
      {"betas_rest", {"0.30000000000000004,0.5"}},
      {"betas_radius", {"0.30000000000000004,0.5"}},
      {"eps_radius", {"0.30000000000000004"}},
      {"ns_steps", {"3"}},
      {"precondition_frequency", {"3"}},
      {"max_precond_dim", {"17"}},
      {"warmup_steps", {"7"}},
      {"radius", {"learned"}},
      {"direction", {"retraction"}},
      {"conditioner", {"none"}},
      {"reproject", {"final"}},
      {"coefficients", {"polar_express", {{"reproject", "final"}}}},
      {"ns_dtype", {"bf16"}},
      {"ns_form", {"gram", {{"reproject", "final"}}}},
      {"normalize", {"rows"}},
      {"row_beta", {"0.30000000000000004"}},
      {"scale", {"rms"}},
      {"constraint", {"hyperball"}},
      {"splits", {"h.*=2,*.c_attn.weight=4+2+2"}},
      {"on_zero", {"hold"}},
      {"rounding", {"exact"}},
      {"state_dtype", {"bf16"}},
      {"state_rounding", {"stochastic"}},
      {"seed", {"18446744073709551615"}},
  };
  if (info.value == "true") return {"false"};
  if (info.value == "false") return {"true"};
  if (optimizer == "ademamix" && info.key == "betas") return {"0.30000000000000004,0.5,0.25"};
  const auto found = table.find(info.key);
  if (found == table.end()) return {};
  Alternative out = found->second;
  if (out.value == info.value) {  // muon-rms is already rms, the paper's radius is learned
    if (info.key == "scale") out.value = "original";
    if (info.key == "radius") out.value = "adaptive";
    if (info.key == "on_zero") out.value = "rest";
  }
  if (info.key == "scale" && optimizer.starts_with("rode")) {
    out.value = info.value == "angle" ? "kernel" : "angle";
  }
  // Only RODE has the option that these need.
  if (!optimizer.starts_with("rode")) out.needs.clear();
  return out;
}

}  // namespace rode::test
