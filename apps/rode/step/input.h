// SPDX-License-Identifier: Apache-2.0
// The input of `rode step`: parameters, their gradients by step, and state, checked by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rode/method.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"
#include "support.h"

namespace rode::cli {

class StepInput {
 public:
  // Refuses names the format does not know, gradients without a parameter, two kinds of
  // gradient for one parameter, and shapes or types that do not fit.
  explicit StepInput(const std::filesystem::path& path);

  const SafetensorsFile& file() const { return file_; }

  // Copies of the weights, in the order of their names; gradients unbound.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // The same with the layouts of "PATTERN=in_out|out_in" applied; the first match wins.
  void set_layouts(const std::vector<std::string>& layouts);

  // The gradient of step k = 0, 1, ...; null data where the file has none.
  ConstTensorView gradient(std::size_t parameter, std::int64_t k) const;

  // Which rule steps each parameter: by the routing, and by whether it began at zero.
  std::vector<RoutedParameter> routed(const Method& method, const Routing& routing) const;

  // Every "state.<parameter>.<key>" of the file must be one of `expected`.
  void check_state_names(const std::vector<std::string>& expected) const;
  // The parameter a "state.<parameter>.<key>" belongs to: the longest name that fits.
  const std::string* owner_of_state(std::string_view tensor) const;
  bool has_state_of(std::string_view parameter) const;

  std::int64_t steps_before() const { return steps_before_; }  // metadata "rode.step"

 private:
  struct Gradients {
    ConstTensorView every;                            // grad.<name>
    std::map<std::int64_t, ConstTensorView> by_step;  // grad@<k>.<name>
  };

  void read_parameters();
  void read_gradient(const std::string& tensor);
  void read_metadata();
  [[noreturn]] void refuse_name(const std::string& tensor, std::string_view why) const;
  std::size_t index_of(std::string_view parameter) const;

  std::string path_;
  SafetensorsFile file_;
  std::vector<Buffer> weights_;
  std::vector<Parameter> parameters_;
  std::vector<Gradients> gradients_;
  std::vector<std::string> state_names_;
  std::int64_t steps_before_ = 0;
};

// The tensors of the output file. Entries borrow; `scalars` owns what has no other owner.
struct StepOutput {
  std::vector<TensorEntry> entries;
  std::vector<Buffer> owned;
  std::map<std::string, std::string> metadata;

  void add_floats(const std::string& name, const Shape& shape, const std::vector<double>& values);
};

}  // namespace rode::cli
