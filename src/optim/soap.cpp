// SPDX-License-Identifier: Apache-2.0
// SOAP's options, state and jobs.
#include "rode/optim/soap.h"

#include <fmt/format.h>

#include "optim/matrix_optimizer.h"
#include "rode/error.h"

namespace rode {
namespace {

class SoapRule final : public MatrixOptimizer<SoapRule, SoapOptions, rules::SoapConstants> {
 public:
  using MatrixOptimizer::MatrixOptimizer;

  static const OptionSchema<SoapOptions>& schema() {
    using O = SoapOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay, after the update"));
      f.push_back(
          numbers("betas", &O::betas, unit_interval(),
                  "decay of Adam's averages in the rotated basis; the second also of the factors"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to sqrt(v), which is uncorrected"));
      f.push_back(integer("precondition_frequency", &O::precondition_frequency, 1, 1000000,
                          "steps between two changes of basis"));
      f.push_back(integer("max_precond_dim", &O::max_precond_dim, 1, 1000000,
                          "longest side that gets a basis; a longer one keeps the identity"));
      append_rest(f);
      append_storage(f);
      return f;
    }());
    return table;
  }

  static void cross_check(std::string_view name, const SoapOptions& o) {
    if (o.storage.state_dtype == StateDType::bf16) {
      throw Error(ErrorKind::unsupported, name,
                  "option 'state_dtype' = 'bf16'; SOAP's factors and bases need fp32; leave "
                  "state_dtype=fp32");
    }
  }

  static rules::SoapConstants constants(const SoapOptions& o) {
    return {.lr = o.lr,
            .weight_decay = o.weight_decay,
            .beta1 = o.betas[0],
            .beta2 = o.betas[1],
            .eps = o.eps,
            .precondition_frequency = o.precondition_frequency,
            .max_precond_dim = o.max_precond_dim};
  }

  std::vector<StateSpec> matrix_state(const Subject& subject) const {
    matrix_shape(name_, subject);  // checks the rank
    const Shape& shape = subject.parameter->value.shape;
    const bool batch = subject.parameter->experts.value_or(false);
    std::vector<StateSpec> specs{{"exp_avg", shape, DType::f32}, {"exp_avg_sq", shape, DType::f32}};
    for (int mode = 0; mode < modes(subject); ++mode) {
      const std::int64_t extent = shape[batch ? mode + 1 : mode];
      if (!rules::has_basis(extent, options_.max_precond_dim)) continue;
      const Shape square = batch ? Shape{shape[0], extent, extent} : Shape{extent, extent};
      specs.push_back({fmt::format("gram.{}", mode), square, DType::f32});
      specs.push_back({fmt::format("basis.{}", mode), square, DType::f32});
    }
    specs.push_back({"step", {batch ? shape[0] : 1}, DType::i64});
    return specs;
  }

  // The dimensions that have a basis: of experts, those of each.
  static int modes(const Subject& subject) {
    const int rank = subject.parameter->value.shape.rank();
    return subject.parameter->experts.value_or(false) ? rank - 1 : rank;
  }

  void add_matrix_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                       const rules::SoapConstants& constants, Backend*) const {
    const Shape& shape = subject.parameter->value.shape;
    const int dimensions = modes(subject), first = shape.rank() - dimensions;
    const std::int64_t experts = first == 1 ? shape[0] : 1;
    const std::int64_t count = experts == 0 ? 0 : shape.numel() / experts;
    // Of state that has `size` numbers for each expert.
    const auto part = [&](const std::string& key, std::int64_t expert, std::int64_t size) {
      auto* data = static_cast<float*>(state.find(key));
      return data == nullptr ? nullptr : data + expert * size;
    };
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      SoapJob& job = jobs.soap.emplace_back();
      fill_base(job, subject, options_.storage, state, expert * count);
      job.constants = &constants;
      job.most_gg = rules::kSquaresLimit;
      for (int mode = 0; mode < dimensions; ++mode) {
        const std::int64_t extent = shape[first + mode], square = extent * extent;
        job.modes.push_back({extent, part(fmt::format("gram.{}", mode), expert, square),
                             part(fmt::format("basis.{}", mode), expert, square)});
      }
      job.exp_avg = part("exp_avg", expert, count);
      job.exp_avg_sq = part("exp_avg_sq", expert, count);
      auto* step = static_cast<std::int64_t*>(state.find("step"));
      job.step = step == nullptr ? nullptr : step + expert;
    }
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const SoapOptions& options) {
  return std::make_shared<SoapRule>("soap", options);
}

}  // namespace rode
