// SPDX-License-Identifier: Apache-2.0
// A step of several processes, and the state that they hold together.
#include <bit>
#include <exception>
#include <span>
#include <sstream>

#include <ATen/ops/from_blob.h>
#include <torch/serialize/archive.h>

#include "binding.h"
#include "core/checksum.h"
#include "rode/error.h"
#include "share.h"
#include "tensors.h"

namespace rode::torch {
namespace {

// The options as they act in a step, in 32 bits: a double of the agreement holds them exactly.
std::uint32_t hash_of(const std::vector<const GroupOptions*>& options, double multiplier,
                      OnBadGradient on_non_finite) {
  std::ostringstream text;
  text << std::bit_cast<std::uint64_t>(multiplier) << ' ' << static_cast<int>(on_non_finite);
  for (const GroupOptions* group : options) {
    for (const OptionInfo& option : group->method().options()) {
      text << '\n' << option.key << '=' << option.value;
    }
    const RateCoupling coupling = group->coupling();
    text << '\n' << std::bit_cast<std::uint64_t>(coupling.from.value_or(0)) << coupling.lr_rho;
  }
  const std::string bytes = text.str();
  return static_cast<std::uint32_t>(hash64(std::as_bytes(std::span(bytes))));
}

// The same error of a step that others, or this one, have made nevertheless.
Error changed(const Error& error) {
  const std::string text = error.what();  // "[operation] message"
  const std::size_t end = text.find("] ");
  return Error::after_change(error.kind(), text.substr(1, end - 1), text.substr(end + 2));
}

}  // namespace

// The plan for the parameters as they are now.
void EngineOptimizer::deal() {
  if (share_->begun) {
    throw Error(
        ErrorKind::process_group, "process group",
        "parameters have been added, moved or cast since their state was divided between the "
        "ranks; call save_consolidated(), make a new optimizer and load the archive there");
  }
  drop();
  state_.clear();  // of an engine that has made no step, by the plan before
  std::vector<const GroupOptions*> options;
  try {
    options = adopted_options();
  } catch (const Error& error) {
    share_->report(error.what());
    throw;
  }
  share_->make(param_groups_, options, on_non_finite_);
}

void EngineOptimizer::step_shared(double multiplier) {
  StepReport report;
  std::exception_ptr failure;
  // Of all ranks, unlike what follows: an error is then everybody's.
  if (!share_->begun && !share_->follows(param_groups_)) deal();
  try {
    bind();
    if (binding_->engine().capturing()) {
      throw Error(ErrorKind::unsupported, "step",
                  "the ranks agree on every step, which a CUDA graph cannot hold; step outside of "
                  "the capture");
    }
    report = share_->report_of_gradients();
    report.options = hash_of(adopted_options(), multiplier, on_non_finite_);
    report.steps_done = steps_done();
  } catch (const std::exception&) {
    failure = std::current_exception();
    report = StepReport{.failed = true, .present = {}, .bad = {}};
  }
  share_->begun = true;  // on all ranks, those included that own nothing or have failed
  std::vector<std::size_t> left;
  try {
    left = share_->agree(report, on_non_finite_);
  } catch (const Error&) {
    if (failure) std::rethrow_exception(failure);  // it says more
    throw;
  }
  try {
    binding_->step(multiplier, left);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  std::vector<int> failed;
  try {
    failed = share_->exchange(failure != nullptr);
  } catch (const Error& broken) {
    throw changed(broken);  // this rank's weights, if no others
  }
  if (failed.empty()) return;
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      if (std::ssize(failed) < share_->ranks().size()) throw changed(error);  // by the others
      throw;
    }
  }
  std::string names;
  for (const int rank : failed) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  throw Error::after_change(ErrorKind::process_group, "step",
                            "the step failed on rank " + names +
                                ", but was made on this one; restore a checkpoint on every rank; "
                                "see the error of that rank");
}

// ---- State ------------------------------------------------------------------------------------

bool EngineOptimizer::save_consolidated(::torch::serialize::OutputArchive& archive) {
  if (!share_ || share_->alone()) {
    write_archive(archive, state_);
    return true;
  }
  const auto whole = share_->collect(state_);
  if (!whole) return false;
  ParamStates states;
  for (const auto& [index, tensors] : *whole) {
    auto state = std::make_unique<ParamState>();
    state->tensors = tensors;
    states[share_->parameters()[index].unsafeGetTensorImpl()] = std::move(state);
  }
  write_archive(archive, states);
  return true;
}

std::vector<std::pair<std::string, at::Tensor>> EngineOptimizer::whole_state() {
  bind();
  std::vector<std::pair<std::string, at::Tensor>> out;
  if (!share_ || share_->alone()) {
    for (const TensorEntry& entry : engine().state()) {
      const auto dims = entry.view.shape.dims();
      out.emplace_back(entry.name, at::from_blob(const_cast<void*>(entry.view.data),
                                                 at::IntArrayRef(dims.data(), dims.size()),
                                                 torch_dtype(entry.view.dtype))
                                       .clone());
    }
    return out;
  }
  const auto whole = share_->collect(state_);
  if (!whole) return out;
  for (const auto& [index, tensors] : *whole) {
    for (const auto& [key, tensor] : tensors) {
      out.emplace_back("state." + share_->names()[index] + "." + key, tensor);
    }
  }
  return out;
}

void EngineOptimizer::load_state(const SafetensorsFile& file) {
  bind();
  if (!share_) {
    engine().load_state(file);
    return;
  }
  // A file with this rank's part of the state alone, which the engine then judges as any other.
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < share_->names().size(); ++i) places[share_->names()[i]] = i;
  std::map<std::size_t, StateTensors> found;
  constexpr std::string_view kPrefix = "state.";
  for (const std::string& name : file.names()) {
    const std::size_t dot = name.rfind('.');
    if (!name.starts_with(kPrefix) || dot < kPrefix.size()) continue;
    const auto place = places.find(name.substr(kPrefix.size(), dot - kPrefix.size()));
    if (place == places.end()) continue;
    const ConstTensorView view = file.tensor(name);
    const auto dims = view.shape.dims();
    found[place->second][name.substr(dot + 1)] =
        at::from_blob(const_cast<void*>(view.data), at::IntArrayRef(dims.data(), dims.size()),
                      torch_dtype(view.dtype));
  }
  std::vector<TensorEntry> entries;
  std::vector<at::Tensor> kept;
  for (const auto& [index, tensors] : found) {
    const auto own = share_->cut(index, tensors);
    if (!own) continue;
    for (const auto& [key, tensor] : *own) {
      const at::Tensor& host = kept.emplace_back(tensor.contiguous());
      const DType dtype = engine_dtype(host.scalar_type()).value_or(DType::boolean);
      entries.push_back({"state." + share_->names()[index] + "." + key,
                         {host.const_data_ptr(), shape_of(host), dtype}});
    }
  }
  const std::vector<std::byte> bytes = serialize_safetensors(entries, file.metadata());
  engine().load_state(SafetensorsFile::parse(
      bytes, "the share of the state of rank " + std::to_string(share_->ranks().rank())));
  share_->begun = !found.empty();
  share_->set_limits(param_groups_, adopted_options(), state_);
}

}  // namespace rode::torch
