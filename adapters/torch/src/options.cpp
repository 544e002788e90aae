// SPDX-License-Identifier: Apache-2.0
// Options to and from archives, and to a live engine.
#include "rode/torch/options.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "rode/error.h"

namespace rode::torch {
namespace {

using Texts = c10::Dict<std::string, std::string>;
using Names = c10::List<std::string>;

// Enumerators in order, so that their number is what an archive holds.
constexpr std::int64_t kLastRule = static_cast<std::int64_t>(GroupRule::rest);
constexpr std::int64_t kLastRoute = static_cast<std::int64_t>(Route::lora);
constexpr std::int64_t kLastLayout = static_cast<std::int64_t>(Layout::in_out);

c10::IValue read(::torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (archive.try_read(key, value)) return value;
  throw Error(ErrorKind::state_mismatch, "load",
              "the archive's group has no '" + key +
                  "'; expected options that an optimizer of rode::torch saved");
}

template <class Enum>
Enum read_enum(::torch::serialize::InputArchive& archive, const std::string& key,
               std::int64_t last) {
  const c10::IValue value = read(archive, key);
  if (value.isInt() && value.toInt() >= 0 && value.toInt() <= last) {
    return static_cast<Enum>(value.toInt());
  }
  throw Error(
      ErrorKind::state_mismatch, "load",
      "the archive's '" + key + "' is not a whole number from 0 to " + std::to_string(last));
}

void write_settings(::torch::serialize::OutputArchive& archive, const GroupSettings& settings) {
  archive.write("rule", c10::IValue(static_cast<std::int64_t>(settings.rule)));
  archive.write("route", c10::IValue(static_cast<std::int64_t>(settings.route)));
  archive.write("layout", c10::IValue(static_cast<std::int64_t>(settings.layout)));
  archive.write("couple_lr_rho", c10::IValue(settings.couple_lr_rho));
  if (settings.initial_lr) archive.write("initial_lr", c10::IValue(*settings.initial_lr));
  Names names;
  for (const std::string& name : settings.names) names.push_back(name);
  archive.write("names", c10::IValue(names));
}

GroupSettings read_settings(::torch::serialize::InputArchive& archive) {
  GroupSettings settings;
  settings.rule = read_enum<GroupRule>(archive, "rule", kLastRule);
  settings.route = read_enum<Route>(archive, "route", kLastRoute);
  settings.layout = read_enum<Layout>(archive, "layout", kLastLayout);
  settings.couple_lr_rho = read(archive, "couple_lr_rho").toBool();
  c10::IValue initial;
  if (archive.try_read("initial_lr", initial)) settings.initial_lr = initial.toDouble();
  const c10::IValue names = read(archive, "names");
  for (const c10::IValue& name : names.toListRef()) settings.names.push_back(name.toStringRef());
  return settings;
}

}  // namespace

std::map<std::string, std::string> given_options(const Method& method) {
  std::map<std::string, std::string> out;
  for (const OptionInfo& info : method.options()) {
    if (info.set) out[info.key] = info.value;
  }
  return out;
}

// The scheduler of a group of the rest moves lr_rest itself.
RateCoupling GroupOptions::coupling() const {
  if (rule == GroupRule::rest) return {};
  return {.from = initial_lr, .lr_rho = couple_lr_rho};
}

template <class E>
double Options<E>::get_lr() const {
  // Every optimizer has both.
  return method().number(rule == GroupRule::rest ? "lr_rest" : "lr").value_or(0);
}

template <class E>
void Options<E>::set_lr(double rate) {
  if (rule == GroupRule::rest) {
    this->lr_rest = rate;
  } else {
    this->lr = rate;
  }
}

template <class E>
void Options<E>::serialize(::torch::serialize::OutputArchive& archive) const {
  Texts texts;
  const Method now = method();
  for (const auto& [key, value] : given_options(now)) texts.insert(key, value);
  archive.write("optimizer", c10::IValue(std::string(now.family())));
  archive.write("values", c10::IValue(texts));
  write_settings(archive, *this);
}

template <class E>
void Options<E>::serialize(::torch::serialize::InputArchive& archive) {
  const Method defaults{E{}};
  const std::string saver = read(archive, "optimizer").toStringRef();
  if (saver != defaults.name()) {
    throw Error(ErrorKind::state_mismatch, "load",
                "the archive was saved by '" + saver + "', but the optimizer here is '" +
                    std::string(defaults.name()) + "'; load it with the one that saved it");
  }
  Settings values;
  for (const auto& entry : read(archive, "values").toGenericDict()) {
    values.emplace_back(entry.key().toStringRef(), entry.value().toStringRef());
  }
  GroupSettings settings = read_settings(archive);
  static_cast<E&>(*this) = *defaults.with(values).template get_if<E>();
  static_cast<GroupSettings&>(*this) = std::move(settings);
}

template <class E>
Method Options<E>::method() const {
  return static_cast<const E&>(*this);
}

template <class E>
void Options<E>::adopt() {
  // Throws where a value is refused. A rate that follows other options is this number from now on:
  // torch's schedulers and archives know numbers alone.
  this->lr = method().number("lr").value_or(0);
  initial_lr = get_lr();
}

template <class E>
void Options<E>::assign(const GroupOptions& other) {
  *this = dynamic_cast<const Options&>(other);
}

template <class E>
void Options<E>::set_number(std::string_view key, double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  const Method changed = method().with({{std::string(key), std::string(text.data(), end.ptr)}});
  static_cast<E&>(*this) = *changed.template get_if<E>();
}

template <class E>
bool Options<E>::send(rode::Optimizer& engine, std::size_t group) const {
  engine.set_coupling(group, coupling());
  const bool as_before = *engine.method(group).template get_if<E>() == static_cast<const E&>(*this);
  return as_before || engine.set_method(group, method());
}

#define RODE_INSTANTIATE(Class, EngineOptions, name, summary) \
  template class Options<rode::EngineOptions>;
RODE_FOR_EACH_OPTIMIZER(RODE_INSTANTIATE)
#undef RODE_INSTANTIATE

}  // namespace rode::torch
