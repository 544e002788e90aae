// SPDX-License-Identifier: Apache-2.0
// Plans, facts and verdicts of processes that share an optimizer's work.
#include "rode/share.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "rode/version.h"
#include "rules/gate.h"

namespace rode {
namespace {

constexpr const char* kUnchanged = "nothing was changed on any rank";

// Of a rank's part of the sums, behind the two numbers of each parameter.
constexpr std::size_t kNumbersOfRank = 4;

std::vector<const Parameter*> all_parameters(std::span<const ParameterGroup> groups) {
  std::vector<const Parameter*> out;
  for (const ParameterGroup& group : groups) {
    for (const Parameter& p : group.parameters) out.push_back(&p);
  }
  return out;
}

std::map<std::string, std::size_t> places_of(const std::vector<const Parameter*>& parameters) {
  std::map<std::string, std::size_t> out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (out.emplace(parameters[i]->name, i).second) continue;
    throw Error(ErrorKind::invalid_argument, "process group",
                fmt::format("two parameters are named '{}'; processes tell parameters apart by "
                            "name; give each its own",
                            parameters[i]->name));
  }
  return out;
}

std::vector<ShardItem> items_of(std::span<const ParameterGroup> groups) {
  std::vector<ShardItem> out;
  for (const ParameterGroup& group : groups) {
    for (ShardItem& item : shard_items(group.parameters, group.method, group.routing)) {
      out.push_back(std::move(item));
    }
  }
  return out;
}

std::string ranks_in(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

}  // namespace

// ---- The plan ----------------------------------------------------------------------------------

Shape SharePiece::shape(const Shape& whole_shape) const {
  if (whole) return whole_shape;
  if (unit == 0) return Shape({count});
  std::vector<std::int64_t> dims(whole_shape.dims().begin(), whole_shape.dims().end());
  dims.front() = count / unit;
  return Shape(std::span<const std::int64_t>(dims));
}

std::vector<double> largest_gradients(std::span<const ParameterGroup> groups) {
  const auto by_name = places_of(all_parameters(groups));
  std::vector<double> out(by_name.size(), std::numeric_limits<double>::infinity());
  for (const ParameterGroup& group : groups) {
    for (const PlannedGradient& g :
         planned_gradients(group.parameters, group.method, group.routing)) {
      out[by_name.at(g.parameter)] = g.most_gg;
    }
  }
  return out;
}

SharePlan plan_share(std::span<const ParameterGroup> groups, int ranks,
                     const std::vector<bool>& divisible, const ShardPlanOptions& options) {
  const std::vector<const Parameter*> parameters = all_parameters(groups);
  const auto by_name = places_of(parameters);
  std::vector<std::int64_t> units(parameters.size(), 0);  // elements of a matrix, of batches
  for (const ParameterGroup& group : groups) {
    for (const PlannedGradient& g :
         planned_gradients(group.parameters, group.method, group.routing)) {
      const std::size_t index = by_name.at(g.parameter);
      if (g.experts > 0) units[index] = parameters[index]->value.numel() / g.experts;
    }
  }
  std::vector<ShardItem> items = items_of(groups);
  for (ShardItem& item : items) {
    if (!divisible.at(by_name.at(item.name))) item.unit_bytes = 0;
  }
  SharePlan plan{plan_shards(items, ranks, options), {}, largest_gradients(groups)};
  for (const ShardPiece& piece : plan.shards.pieces) {
    const ShardItem& item = items[piece.item];
    const std::size_t index = by_name.at(item.name);
    const auto width = static_cast<std::int64_t>(size_of(parameters[index]->value.dtype));
    const bool whole = piece.bytes == item.bytes;
    plan.pieces.push_back({index, piece.rank, piece.first / width, piece.bytes / width, whole,
                           piece.offset, whole ? 0 : units[index]});
  }
  return plan;
}

void check_share(const SharePlan& plan, std::span<const ParameterGroup> groups) {
  const std::vector<const Parameter*> parameters = all_parameters(groups);
  std::map<std::string, std::int64_t> units;
  bool known = false;
  for (const SharePiece& piece : plan.pieces) {
    if (piece.whole) continue;
    if (!known) {  // most plans have few parts, and steps ask
      for (const ShardItem& item : items_of(groups)) units[item.name] = item.unit_bytes;
      known = true;
    }
    const Parameter& p = *parameters.at(piece.parameter);
    const auto width = static_cast<std::int64_t>(size_of(p.value.dtype));
    const std::int64_t unit = units[p.name];
    if (unit > 0 && piece.first * width % unit == 0) continue;
    throw Error(ErrorKind::process_group, "process group",
                fmt::format("parameter '{}' was divided between ranks, which its group's options "
                            "no longer allow; set them back, or give them to a new optimizer and "
                            "load the consolidated state there",
                            p.name));
  }
}

// ---- Facts -------------------------------------------------------------------------------------

std::string ShareFacts::to_text() const {
  const nlohmann::json json = {{"error", error},
                               {"version", version},
                               {"optimizer", optimizer},
                               {"on_non_finite", on_non_finite},
                               {"options", options},
                               {"parameters", parameters},
                               {"plan", plan}};
  return json.dump();
}

ShareFacts ShareFacts::from_text(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  ShareFacts facts;
  facts.error = json.at("error");
  facts.version = json.at("version");
  facts.optimizer = json.at("optimizer");
  facts.on_non_finite = json.at("on_non_finite");
  facts.options = json.at("options").get<std::vector<std::string>>();
  facts.parameters = json.at("parameters").get<std::vector<std::string>>();
  facts.plan = json.at("plan");
  return facts;
}

ShareFacts share_facts(std::span<const ParameterGroup> groups, const SharePlan& plan,
                       OnBadGradient on_non_finite, const std::vector<std::string>& forms) {
  ShareFacts facts;
  facts.version = RODE_VERSION_STRING;
  facts.on_non_finite = on_non_finite == OnBadGradient::skip ? "skip" : "refuse";
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const ParameterGroup& group = groups[g];
    if (g == 0) facts.optimizer = group.method.family();
    const auto add = [&](std::string_view key, std::string_view value) {
      facts.options.push_back(fmt::format("group {}: {} = {}", g, key, value));
    };
    for (const OptionInfo& option : group.method.options()) add(option.key, option.value);
    add("route", to_string(group.routing.route));
    add("initial_lr", fmt::format("{}", group.coupling.from.value_or(0)));
    add("couple_lr_rho", group.coupling.lr_rho ? "true" : "false");
  }
  const std::vector<const Parameter*> parameters = all_parameters(groups);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    facts.parameters.push_back(
        fmt::format("'{}' {} {} {} {}", p.name, to_string(p.value.dtype), to_string(p.value.shape),
                    p.layout == Layout::in_out ? "in_out" : "out_in", forms.at(i)));
  }
  facts.plan = fmt::format("{:016x}", plan.shards.hash);
  return facts;
}

std::optional<Error> difference(std::span<const ShareFacts> told) {
  const auto refuse = [](const std::string& text) {
    return Error(ErrorKind::process_group, "process group", text);
  };
  for (std::size_t r = 0; r < told.size(); ++r) {
    if (told[r].error.empty()) continue;
    return refuse(fmt::format("rank {} could not make its optimizer: {}", r, told[r].error));
  }
  struct Compared {
    const char* what;
    std::vector<std::string> (*of)(const ShareFacts&);
    const char* remedy;
  };
  using Lines = std::vector<std::string>;
  static constexpr const char* kAlike = "give every rank the same options";
  static const Compared kCompared[] = {
      {"version", [](const ShareFacts& f) { return Lines{f.version}; },
       "install one version of rode everywhere"},
      {"optimizer", [](const ShareFacts& f) { return Lines{f.optimizer}; },
       "give every rank the same optimizer"},
      {"on_non_finite", [](const ShareFacts& f) { return Lines{f.on_non_finite}; }, kAlike},
      {"options", [](const ShareFacts& f) { return f.options; }, kAlike},
      {"parameters", [](const ShareFacts& f) { return f.parameters; },
       "build the same model on every rank, and its optimizer after moves and casts"},
      {"plan", [](const ShareFacts& f) { return Lines{f.plan}; },
       "report this: ranks with the same parameters have made different plans"},
  };
  for (const Compared& compared : kCompared) {
    const Lines first = compared.of(told[0]);
    for (std::size_t r = 1; r < told.size(); ++r) {
      const Lines found = compared.of(told[r]);
      if (found == first) continue;
      if (found.size() != first.size()) {
        return refuse(fmt::format("rank {} has {} {}, rank 0 {}; {}", r, found.size(),
                                  compared.what, first.size(), compared.remedy));
      }
      const auto at = std::ranges::mismatch(found, first);
      return refuse(fmt::format("{} differ: rank {} has {}, rank 0 has {}; {}", compared.what, r,
                                *at.in1, *at.in2, compared.remedy));
    }
  }
  return std::nullopt;
}

// ---- A step ------------------------------------------------------------------------------------

std::vector<double> StepReport::numbers(int rank, int ranks) const {
  std::vector<double> out;
  for (const bool flag : present) out.push_back(flag ? 1 : 0);
  for (const bool flag : bad) out.push_back(flag ? 1 : 0);
  const std::size_t begin = out.size();
  out.resize(begin + kNumbersOfRank * static_cast<std::size_t>(ranks), 0);
  double* const own = out.data() + begin + kNumbersOfRank * static_cast<std::size_t>(rank);
  own[0] = failed ? 1 : 0;
  own[1] = std::ranges::find(bad, true) != bad.end() ? 1 : 0;
  own[2] = options;
  own[3] = static_cast<double>(steps_done);
  return out;
}

bool finite_gradient(double gg, double most_gg) { return rules::finite_gradient(gg, most_gg); }

std::string missing_gradient_text(std::string_view parameter, double present, double absent) {
  return fmt::format(
      "gradient of '{}' is present on {:.0f} ranks and absent on {:.0f}; {}; a step needs it on "
      "all ranks or on none",
      parameter, present, absent, kUnchanged);
}

std::string bad_weights_text(std::string_view parameter, bool parts) {
  return fmt::format(
      "the weights or the momentum of '{}' hold NaN or Inf, or are too large to continue in fp32; "
      "{}; "
      "restore a checkpoint",
      parameter, parts ? kUnchanged : "nothing was changed");
}

std::vector<std::size_t> agree_on_step(std::span<const double> sums, int ranks,
                                       std::span<const std::string> names,
                                       OnBadGradient on_non_finite) {
  const std::size_t n = names.size();
  const auto told = [&](int rank, std::size_t what) {
    return sums[2 * n + kNumbersOfRank * static_cast<std::size_t>(rank) + what];
  };
  const auto ranks_with = [&](std::size_t what) {
    std::vector<int> out;
    for (int r = 0; r < ranks; ++r) {
      if (told(r, what) != 0) out.push_back(r);
    }
    return out;
  };
  const auto refuse = [](ErrorKind kind, const std::string& text) {
    throw Error(kind, "step", text);
  };
  if (const std::vector<int> failed = ranks_with(0); !failed.empty()) {
    refuse(ErrorKind::process_group,
           fmt::format("rank {} could not step; {}; see its error", ranks_in(failed), kUnchanged));
  }
  for (int r = 1; r < ranks; ++r) {
    if (told(r, 2) != told(0, 2)) {
      refuse(ErrorKind::process_group,
             fmt::format("the options of rank {} differ from those of rank 0; {}; schedule rates "
                         "alike on every rank",
                         r, kUnchanged));
    }
    if (told(r, 3) != told(0, 3)) {
      refuse(ErrorKind::process_group,
             fmt::format("rank {} has made {:.0f} steps, rank 0 {:.0f}; {}; load the same "
                         "checkpoint on every rank",
                         r, told(r, 3), told(0, 3), kUnchanged));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (sums[i] == 0 || sums[i] == ranks) continue;
    refuse(ErrorKind::missing_gradient, missing_gradient_text(names[i], sums[i], ranks - sums[i]));
  }
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < n; ++i) {
    if (sums[n + i] != 0) bad.push_back(i);
  }
  if (!bad.empty() && on_non_finite == OnBadGradient::refuse) {
    refuse(ErrorKind::non_finite,
           fmt::format("gradient of '{}' holds NaN or Inf, or is too large for fp32 state, on rank "
                       "{}; {}; lower the rate or the loss scale, or set on_non_finite to skip",
                       names[bad.front()], ranks_in(ranks_with(1)), kUnchanged));
  }
  return bad;
}

}  // namespace rode
