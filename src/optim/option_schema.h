// SPDX-License-Identifier: Apache-2.0
// One table per options struct: it parses, prints, lists and checks every field.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/option_text.h"
#include "optim/rest_rates.h"
#include "rode/method.h"
#include "rode/optim/common.h"
#include "rules/newton_schulz_rule.h"

namespace rode {

template <class Options>
struct OptionField {
  std::string key, help;
  bool live;
  std::function<std::string(const Options&)> get;
  std::function<void(Options&, const OptionText&)> set;
  std::function<void(const Options&, const OptionText&)> check;      // throws; text for messages
  std::function<void(Options&, double)> set_number = {};             // of a live number
  std::function<std::optional<double>(const Options&)> number = {};  // of a live number
  // Whether it was given, of one that follows other options where it was not; none: always.
  std::function<bool(const Options&)> is_set = {};
};

template <class Options>
class OptionSchema {
 public:
  explicit OptionSchema(std::vector<OptionField<Options>> fields) : fields_(std::move(fields)) {}

  std::vector<OptionInfo> describe(const Options& options) const {
    std::vector<OptionInfo> out;
    for (const auto& f : fields_) {
      out.push_back({f.key, f.get(options), f.help, f.live, !f.is_set || f.is_set(options)});
    }
    return out;
  }

  void apply(std::string_view optimizer, Options& options, const Settings& settings) const {
    for (const auto& [key, value] : settings) {
      const OptionField<Options>* field = find(key);
      if (field == nullptr) {
        std::vector<std::string> keys;
        for (const auto& f : fields_) keys.push_back(f.key);
        throw_unknown_option(optimizer, key, keys);
      }
      field->set(options, {optimizer, key, value});
    }
  }

  void check(std::string_view optimizer, const Options& options) const {
    for (const auto& f : fields_) {
      if (f.check) f.check(options, {optimizer, f.key, f.get(options)});
    }
  }

  // Whether two differ in live options at most.
  bool same_fixed(const Options& a, const Options& b) const {
    for (const auto& f : fields_) {
      if (!f.live && f.get(a) != f.get(b)) return false;
    }
    return true;
  }

  // How many fixed options `preset` sets to values that are not the defaults; 0 where `options` has
  // one of these otherwise.
  int fixed_settings_of(const Options& preset, const Options& options) const {
    const Options base;
    int count = 0;
    for (const auto& f : fields_) {
      if (f.live || f.get(preset) == f.get(base)) continue;
      if (f.get(preset) != f.get(options)) return 0;
      ++count;
    }
    return count;
  }

  const OptionField<Options>* find(std::string_view key) const {
    for (const auto& f : fields_) {
      if (f.key == key) return &f;
    }
    return nullptr;
  }

 private:
  std::vector<OptionField<Options>> fields_;
};

// Field makers. `live` marks numbers that a training loop changes between steps.

template <class O>
OptionField<O> number(std::string key, double O::* member, OptionRange range, std::string help) {
  help += "; " + to_string(range);
  return {
      std::move(key),
      std::move(help),
      true,
      [member](const O& o) { return print_number(o.*member); },
      [member](O& o, const OptionText& text) { o.*member = parse_number(text); },
      [member, range](const O& o, const OptionText& text) { check_range(text, o.*member, range); },
      [member](O& o, double value) { o.*member = value; },
      [member](const O& o) { return std::optional(o.*member); }};
}

// If unset, it follows another option and prints that option's value.
template <class O>
OptionField<O> optional_number(std::string key, std::optional<double> O::* member,
                               double (*fallback)(const O&), OptionRange range, std::string help) {
  help += "; " + to_string(range);
  return {
      std::move(key),
      std::move(help),
      true,
      [member, fallback](const O& o) { return print_number((o.*member).value_or(fallback(o))); },
      [member](O& o, const OptionText& text) { o.*member = parse_number(text); },
      [member, fallback, range](const O& o, const OptionText& text) {
        check_range(text, (o.*member).value_or(fallback(o)), range);
      },
      [member](O& o, double value) { o.*member = value; },
      [member, fallback](const O& o) { return std::optional((o.*member).value_or(fallback(o))); },
      [member](const O& o) { return (o.*member).has_value(); }};
}

template <class O, class Integer>
OptionField<O> integer(std::string key, Integer O::* member, std::int64_t low, std::int64_t high,
                       std::string help) {
  const OptionRange range{static_cast<double>(low), static_cast<double>(high), false, false};
  help += "; " + to_string(range);
  return {std::move(key),
          std::move(help),
          false,
          [member](const O& o) { return std::to_string(o.*member); },
          [member, range](O& o, const OptionText& text) {
            const std::int64_t value = parse_integer(text);
            check_range(text, static_cast<double>(value), range, "a whole number");
            o.*member = static_cast<Integer>(value);
          },
          [member, range](const O& o, const OptionText& text) {
            check_range(text, static_cast<double>(o.*member), range, "a whole number");
          }};
}

// If unset, it follows another option and prints the value that this gives.
template <class O>
OptionField<O> optional_integer(std::string key, std::optional<int> O::* member,
                                int (*fallback)(const O&), int low, int high, std::string help) {
  const OptionRange range{static_cast<double>(low), static_cast<double>(high), false, false};
  help += "; " + to_string(range);
  return {
      std::move(key),
      std::move(help),
      false,
      [member, fallback](const O& o) { return std::to_string((o.*member).value_or(fallback(o))); },
      [member, range](O& o, const OptionText& text) {
        const std::int64_t value = parse_integer(text);
        check_range(text, static_cast<double>(value), range, "a whole number");
        o.*member = static_cast<int>(value);
      },
      [member, range](const O& o, const OptionText& text) {
        if (o.*member)
          check_range(text, static_cast<double>(*(o.*member)), range, "a whole number");
      },
      {},
      {},
      [member](const O& o) { return (o.*member).has_value(); }};
}

template <class O>
OptionField<O> boolean(std::string key, bool O::* member, const std::string& help) {
  return {std::move(key),
          help + "; true or false",
          false,
          [member](const O& o) { return std::string(o.*member ? "true" : "false"); },
          [member](O& o, const OptionText& text) { o.*member = parse_boolean(text); },
          {}};
}

template <class O>
OptionField<O> text(std::string key, std::string O::* member, std::string help) {
  return {std::move(key),
          std::move(help),
          false,
          [member](const O& o) { return o.*member; },
          [member](O& o, const OptionText& value) { o.*member = std::string(value.value); },
          {}};
}

// Enumerators in order, so that their number is the index of the name.
template <class O, class Enum>
OptionField<O> choice(std::string key, Enum O::* member, std::vector<std::string> names,
                      std::string help) {
  help += "; " + join_names(names);
  return {std::move(key),
          std::move(help),
          false,
          [member, names](const O& o) { return names.at(static_cast<std::size_t>(o.*member)); },
          [member, names](O& o, const OptionText& value) {
            o.*member = static_cast<Enum>(parse_choice(value, names));
          },
          {}};
}

template <class O, std::size_t N>
OptionField<O> numbers(std::string key, std::array<double, N> O::* member, OptionRange range,
                       std::string help) {
  help += "; " + std::to_string(N) + " numbers, each " + to_string(range);
  return {std::move(key),
          std::move(help),
          true,
          [member](const O& o) { return print_numbers(o.*member); },
          [member](O& o, const OptionText& value) { parse_numbers(value, o.*member); },
          [member, range](const O& o, const OptionText& value) {
            for (const double x : o.*member) check_range(value, x, range, "each a number");
          }};
}

// Fields that several structs have under the same names.

// The storages of parameter-sized state that a rule has; one that is given in the struct but that
// the rule does not have is refused, too.
inline OptionField<StorageOptions> state_dtype(const std::vector<std::string>& names,
                                               std::string help) {
  auto field = choice("state_dtype", &StorageOptions::state_dtype, names, std::move(help));
  field.get = [](const StorageOptions& o) {
    constexpr std::array<const char*, 3> all{"fp32", "bf16", "int8"};
    return std::string(all.at(static_cast<std::size_t>(o.state_dtype)));
  };
  field.check = [names](const StorageOptions&, const OptionText& text) {
    parse_choice(text, names);
  };
  return field;
}

// `int8`: the rule's momentum may be stored in int8.
template <class O>
void append_storage(std::vector<OptionField<O>>& fields, bool int8 = false) {
  const auto nested = [&](auto field) {
    using Field = OptionField<StorageOptions>;
    const Field f = std::move(field);
    auto& added = fields.emplace_back(
        OptionField<O>{f.key,
                       f.help,
                       f.live,
                       [f](const O& o) { return f.get(o.storage); },
                       [f](O& o, const OptionText& value) { f.set(o.storage, value); },
                       {}});
    if (!f.check) return;
    added.check = [f](const O& o, const OptionText& value) { f.check(o.storage, value); };
  };
  nested(choice("rounding", &StorageOptions::rounding, {"nearest", "stochastic", "exact"},
                "how bf16 weights are written back"));
  if (int8) {
    nested(state_dtype({"fp32", "bf16", "int8"},
                       "type of parameter-sized state; int8: only of the momentum (AdamW: of the "
                       "first moment), with a scale per 256 elements of a row"));
    nested(choice("state_rounding", &StorageOptions::state_rounding, {"nearest", "stochastic"},
                  "how int8 state is rounded"));
  } else {
    nested(state_dtype({"fp32", "bf16"}, "type of parameter-sized state"));
  }
  nested(OptionField<StorageOptions>{
      "seed",
      "seed of stochastic rounding",
      false,
      [](const StorageOptions& o) { return std::to_string(o.seed); },
      [](StorageOptions& o, const OptionText& value) { o.seed = parse_seed(value); },
      {}});
}

// The rates of an optimizer with one rule for everything. `decay` says how the decay acts:
// "decoupled", or "coupled" if it is added to the gradient.
template <class O>
void append_rates(std::vector<OptionField<O>>& fields, const std::string& decay) {
  fields.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
  fields.push_back(
      number("weight_decay", &O::weight_decay, at_least(0), decay + " decay of the matrices"));
}

template <class O>
void append_rates_of_rest(std::vector<OptionField<O>>& fields, const std::string& decay) {
  fields.push_back(optional_number<O>("lr_rest", &O::lr_rest, rest_lr<O>, at_least(0),
                                      "rate of the rest; unless set, lr"));
  fields.push_back(optional_number<O>("weight_decay_rest", &O::weight_decay_rest,
                                      rest_weight_decay<O>, at_least(0),
                                      decay + " decay of the rest; unless set, weight_decay"));
}

// The rates and constants of AdamW for the rest.
template <class O>
void append_rest(std::vector<OptionField<O>>& fields) {
  fields.push_back(optional_number<O>("lr_rest", &O::lr_rest, rest_lr<O>, at_least(0),
                                      "rate of the rest (AdamW); unless set, its default times "
                                      "lr / default lr"));
  fields.push_back(number("weight_decay_rest", &O::weight_decay_rest, at_least(0),
                          "decoupled decay of the rest"));
  fields.push_back(
      numbers("betas_rest", &O::betas_rest, unit_interval(), "decay of AdamW's two averages"));
  fields.push_back(number("eps_rest", &O::eps_rest, more_than(0), "added to AdamW's denominator"));
}

// Of rules whose decay is decoupled; `whose` is decayed.
template <class O>
void append_cautious_decay(std::vector<OptionField<O>>& fields, const std::string& whose) {
  fields.push_back(boolean("cautious_decay", &O::cautious_decay,
                           "apply the decay " + whose +
                               "only to elements that the update does not push away from zero"));
}

// The iterations that run.
template <class O>
int ns_steps_of(const O& o) {
  return o.ns_steps.value_or(rules::own_ns_steps(o.coefficients));
}

template <class O>
void append_newton_schulz(std::vector<OptionField<O>>& fields) {
  fields.push_back(optional_integer(
      "ns_steps", &O::ns_steps, ns_steps_of<O>, 1, 100,
      "number of Newton-Schulz iterations; unless set, 5; with coefficients=four always 4"));
  fields.push_back(choice("coefficients", &O::coefficients,
                          {"jordan", "polar_express", "you", "four"},
                          "Newton-Schulz polynomials; four: made for four iterations from a start "
                          "that is divided by its Schatten-4 norm"));
  fields.push_back(
      choice("ns_dtype", &O::ns_dtype, {"auto", "fp32", "bf16", "fp16", "fp8"},
             "operands of the products; auto: fp32 on the CPU, bf16 on CUDA; fp8: e4m3 on Hopper "
             "(emulated on the CPU), diagonals and iterate kept apart; a matrix with a short side "
             "below 64 always takes fp32"));
  fields.push_back(
      choice("ns_form", &O::ns_form, {"auto", "standard", "gram"},
             "gram: iterate on the small Gram matrix; auto: gram where it is cheaper"));
}

// NorMuon's normalisation of what Newton-Schulz gives.
template <class O>
void append_normalize(std::vector<OptionField<O>>& fields) {
  fields.push_back(choice("normalize", &O::normalize, {"none", "rows"},
                          "rows: divide each row of the orthogonalised matrix by its averaged root "
                          "mean square (NorMuon)"));
  fields.push_back(number("row_beta", &O::row_beta, unit_interval(),
                          "decay of the average of the rows' mean squares (normalize=rows)"));
}

}  // namespace rode
