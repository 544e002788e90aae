// SPDX-License-Identifier: Apache-2.0
// The plan of one rank, what it reports before a step, and the messages of weights after it.
#include "share.h"

#include <set>
#include <utility>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "binding_states.h"
#include "rode/error.h"
#include "tensors.h"

namespace rode::torch {
namespace {

// Before the pieces of a message: whether its sender's step failed.
constexpr std::int64_t kHeader = 16;

}  // namespace

std::vector<std::string> names_of(const ParamGroups& groups,
                                  const std::vector<const GroupOptions*>& options) {
  std::vector<std::string> out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<std::string>& given = options[g]->names;
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      out.push_back(i < given.size() ? given[i] : "param." + std::to_string(out.size()));
    }
  }
  return out;
}

std::vector<ParameterGroup> planned_groups(const ParamGroups& groups,
                                           const std::vector<const GroupOptions*>& options,
                                           const ParamStates& states) {
  const std::vector<std::string> names = names_of(groups, options);
  std::vector<ParameterGroup> out;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupOptions& own = *options[g];
    const Method method = own.method();
    ParameterGroup& group = out.emplace_back(
        ParameterGroup{{}, method, {group_route(own.rule, own.route, method), {}}, own.coupling()});
    for (const at::Tensor& tensor : groups[g].params()) {
      Parameter& p = group.parameters.emplace_back();
      p.name = names[index++];
      p.value = {nullptr, shape_of(tensor), stepped_dtype(tensor.scalar_type())};
      p.layout = own.layout;
      p.zero_start = began_at_zero(states, tensor);
    }
  }
  return out;
}

at::Tensor part_of(const at::Tensor& tensor, const SharePiece& piece) {
  if (piece.whole) return tensor;
  if (piece.unit > 0) {
    return tensor.slice(0, piece.first / piece.unit, (piece.first + piece.count) / piece.unit);
  }
  return tensor.reshape(-1).slice(0, piece.first, piece.first + piece.count);
}

// ---- The plan ---------------------------------------------------------------------------------

EngineOptimizer::Share::Share(ProcessGroup ranks) : ranks_(std::move(ranks)) {}

EngineOptimizer::Share::Form EngineOptimizer::Share::form_of(const at::Tensor& tensor) {
  return {shape_of(tensor), tensor.scalar_type(), tensor.is_contiguous(), tensor.device()};
}

void EngineOptimizer::Share::report(const std::string& error) {
  ShareFacts facts;
  facts.error = error;
  ranks_->tell(facts.to_text());
}

ShareFacts EngineOptimizer::Share::deal(const ParamGroups& groups,
                                        const std::vector<const GroupOptions*>& options,
                                        OnBadGradient on_non_finite) {
  parameters_.clear();
  forms_.clear();
  own_.clear();
  names_ = names_of(groups, options);
  for (const auto& group : groups) {
    for (const at::Tensor& p : group.params()) {
      check_parameter(names_[parameters_.size()], p);
      parameters_.push_back(p);
      forms_.push_back(form_of(p));
    }
  }
  if (parameters_.empty()) {
    throw refuse(ErrorKind::invalid_argument, "parameters", "no parameters given");
  }
  refuse_shared_memory(names_, parameters_);
  std::vector<bool> divisible;
  std::vector<std::string> texts;
  for (const Form& form : forms_) {
    divisible.push_back(form.contiguous);
    texts.emplace_back(form.contiguous ? "contiguous" : "with gaps");
  }
  const std::vector<ParameterGroup> planned = planned_groups(groups, options, {});
  plan_ = plan_share(planned, ranks_->size(), divisible, {.header_bytes = kHeader});
  for (const SharePiece& piece : plan_.pieces) {
    if (piece.rank == ranks_->rank()) own_[piece.parameter] = &piece;
  }
  return share_facts(planned, plan_, on_non_finite, texts);
}

void EngineOptimizer::Share::make(const ParamGroups& groups,
                                  const std::vector<const GroupOptions*>& options,
                                  OnBadGradient on_non_finite) {
  ShareFacts facts;
  try {
    facts = deal(groups, options, on_non_finite);
  } catch (const std::exception& error) {
    try {
      report(error.what());
    } catch (const Error&) {  // of ranks that do not answer: the one above says more
    }
    throw;
  }
  std::vector<ShareFacts> told;
  for (const std::string& text : ranks_->tell(facts.to_text())) {
    told.push_back(ShareFacts::from_text(text));
  }
  if (const std::optional<Error> found = difference(told)) {
    parameters_.clear();  // no plan
    throw *found;
  }
}

bool EngineOptimizer::Share::follows(const ParamGroups& groups) const {
  std::size_t index = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& p : group.params()) {
      if (index == parameters_.size() || !p.is_same(parameters_[index])) return false;
      if (!(form_of(p) == forms_[index++])) return false;
    }
  }
  return index == parameters_.size();
}

void EngineOptimizer::Share::check(const ParamGroups& groups,
                                   const std::vector<const GroupOptions*>& options) const {
  check_share(plan_, planned_groups(groups, options, {}));
}

const SharePiece* EngineOptimizer::Share::own(std::size_t index) const {
  const auto found = own_.find(index);
  return found == own_.end() ? nullptr : found->second;
}

// ---- A step -----------------------------------------------------------------------------------

void EngineOptimizer::Share::set_limits(const ParamGroups& groups,
                                        const std::vector<const GroupOptions*>& options,
                                        const ParamStates& states) {
  plan_.most_gg = largest_gradients(planned_groups(groups, options, states));
}

StepReport EngineOptimizer::Share::report_of_gradients() const {
  const at::NoGradGuard no_grad;
  StepReport report;
  std::vector<at::Tensor> norms;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].grad();
    report.present.push_back(grad.defined());
    if (!grad.defined()) continue;
    check_gradient(names_[i], grad, parameters_[i]);
    norms.push_back(at::linalg_vector_norm(grad, 2, std::nullopt, false, at::kDouble));
    places.push_back(i);
  }
  report.bad.resize(parameters_.size(), false);
  if (norms.empty()) return report;
  const at::Tensor host = at::stack(norms).to(at::kCPU);  // one wait for the device
  for (std::size_t i = 0; i < places.size(); ++i) {
    const double norm = host.const_data_ptr<double>()[i];
    report.bad[places[i]] = !finite_gradient(norm * norm, plan_.most_gg[places[i]]);
  }
  return report;
}

std::vector<std::size_t> EngineOptimizer::Share::agree(const StepReport& report,
                                                       OnBadGradient on_non_finite) {
  StepReport own = report;
  own.present.resize(parameters_.size(), false);  // of a rank that failed before it looked
  own.bad.resize(parameters_.size(), false);
  std::vector<double> numbers = own.numbers(ranks_->rank(), ranks_->size());
  if (!alone()) numbers = ranks_->sum(numbers);
  return agree_on_step(numbers, ranks_->size(), names_, on_non_finite);
}

namespace {

// Bytes of parameters between their memory and messages.
class Moving {
 public:
  explicit Moving(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  // The bytes of a piece that lie in the message from `begin` on: in memory, and there.
  void read(const SharePiece& piece, const at::Tensor& message, std::int64_t begin) {
    move(piece, message, begin, true);
  }
  void write(const SharePiece& piece, const at::Tensor& message, std::int64_t begin) {
    if (move(piece, message, begin, false)) written_.insert(piece.parameter);
  }
  void finish() {
    for (const std::size_t index : written_) {
      if (const auto copy = copies_.find(index); copy != copies_.end()) {
        parameters_[index].detach().copy_(copy->second);
      }
      // Autograd must see that weights changed, though no torch operation wrote them.
      ::torch::autograd::impl::bump_version(parameters_[index]);
    }
  }

 private:
  at::Tensor bytes_of(const SharePiece& piece) {
    at::Tensor value = parameters_[piece.parameter].detach();
    if (!value.is_contiguous()) {
      at::Tensor& copy = copies_[piece.parameter];
      if (!copy.defined()) copy = value.contiguous();
      value = copy;
    }
    return value.view(-1).slice(0, piece.first, piece.first + piece.count).view(at::kByte);
  }

  bool move(const SharePiece& piece, const at::Tensor& message, std::int64_t begin, bool read) {
    const std::int64_t size =
        piece.count * static_cast<std::int64_t>(parameters_[piece.parameter].element_size());
    const std::int64_t first = std::max(begin, piece.offset);
    const std::int64_t last = std::min(begin + message.numel(), piece.offset + size);
    if (first >= last) return false;
    const at::Tensor held = bytes_of(piece).slice(0, first - piece.offset, last - piece.offset);
    const at::Tensor sent = message.slice(0, first - begin, last - begin);
    (read ? sent : held).copy_(read ? held : sent);
    return true;
  }

  const std::vector<at::Tensor>& parameters_;
  std::map<std::size_t, at::Tensor> copies_;  // of parameters with gaps or another order
  std::set<std::size_t> written_;
};

}  // namespace

std::vector<int> EngineOptimizer::Share::exchange(bool failed) {
  if (alone()) return failed ? std::vector<int>{0} : std::vector<int>{};
  const at::NoGradGuard no_grad;
  const c10::Device device = parameters_.front().device();
  Moving moving(parameters_);
  std::vector<int> out;
  std::int64_t begin = 0;
  for (const std::int64_t end : plan_.shards.cuts) {
    const at::Tensor part =
        at::zeros({end - begin}, at::TensorOptions().dtype(at::kByte).device(device));
    if (begin == 0) part[0].fill_(failed ? 1 : 0);
    for (const auto& [index, piece] : own_) moving.read(*piece, part, begin);
    const at::Tensor rows = ranks_->gather(part);
    if (begin == 0) {
      const at::Tensor statuses = rows.select(1, 0).contiguous().to(at::kCPU);
      for (int rank = 0; rank < ranks_->size(); ++rank) {
        if (statuses.const_data_ptr<std::uint8_t>()[rank] != 0) out.push_back(rank);
      }
    }
    const at::Tensor here = rows.to(device);
    for (const SharePiece& piece : plan_.pieces) {
      if (piece.rank != ranks_->rank()) moving.write(piece, here[piece.rank], begin);
    }
    begin = end;
  }
  moving.finish();
  return out;
}

}  // namespace rode::torch
