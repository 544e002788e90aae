// SPDX-License-Identifier: Apache-2.0
// The Python module rode._engine: the engine over addresses, without any framework's headers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine.h"
#include "rode/rode.h"

namespace nb = nanobind;

namespace rode::python {
namespace {

PyObject* error_type = nullptr;
PyObject* option_error_type = nullptr;

// Error is a RuntimeError; what a caller gave wrongly is a ValueError as well.
void make_errors(nb::module_& m) {
  error_type = PyErr_NewExceptionWithDoc("rode.Error", "An error of the engine; `kind` says which.",
                                         PyExc_RuntimeError, nullptr);
  if (error_type == nullptr) throw nb::python_error();
  // Unless the engine says more.
  nb::borrow(error_type).attr("changed") = nb::bool_(false);
  nb::borrow(error_type).attr("kind") = nb::str("invalid argument");
  const nb::object bases = nb::make_tuple(nb::borrow(error_type), nb::borrow(PyExc_ValueError));
  option_error_type = PyErr_NewExceptionWithDoc(
      "rode.OptionError", "An option, a name or a combination that the engine refuses.",
      bases.ptr(), nullptr);
  if (option_error_type == nullptr) throw nb::python_error();
  m.attr("Error") = nb::borrow(error_type);
  m.attr("OptionError") = nb::borrow(option_error_type);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const bool option = error.kind() == ErrorKind::invalid_argument;
      const nb::object type = nb::borrow(option ? option_error_type : error_type);
      nb::object value = type(error.what());
      value.attr("kind") = nb::str(std::string(to_string(error.kind())).c_str());
      value.attr("changed") = nb::bool_(error.changed());
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
}

// key, value, help, live, given
using OptionRow = std::tuple<std::string, std::string, std::string, bool, bool>;

std::vector<OptionRow> rows(const std::vector<OptionInfo>& options) {
  std::vector<OptionRow> out;
  for (const OptionInfo& o : options) out.emplace_back(o.key, o.value, o.help, o.live, o.set);
  return out;
}

nb::dict matrix_diagnostics(const Engine& engine) {
  nb::dict out;
  for (const MatrixDiagnostics& d : engine.optimizer().matrix_diagnostics()) {
    nb::dict row;
    row["rho"] = d.rho;
    row["rho_next"] = d.rho_next;
    row["s"] = d.s;
    row["q"] = d.q;
    row["theta"] = d.theta;
    row["gamma"] = d.gamma;
    row["m_norm"] = d.m_norm;
    out[d.name.c_str()] = row;
  }
  return out;
}

nb::dict global_diagnostics(const Engine& engine) {
  const GlobalDiagnostics d = engine.optimizer().global_diagnostics();
  nb::dict out;
  out["weight_norm"] = d.weight_norm;
  out["update_norm"] = d.update_norm;
  out["update_ratio"] = d.update_ratio;
  out["gradient_norm"] = d.gradient_norm;
  out["held"] = d.held;
  return out;
}

// Treatment and reason of each parameter (name, shape) on a route of the engine's.
using RouteRow = std::tuple<std::string, std::string>;

std::vector<RouteRow> route(
    std::string_view name,
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& given) {
  std::vector<Parameter> parameters;
  for (const auto& [label, shape] : given) {
    Parameter& p = parameters.emplace_back();
    p.name = label;
    p.value = {nullptr, Shape(shape), DType::f32};
  }
  std::vector<RouteRow> out;
  for (const RoutedParameter& r : route_parameters(parameters, {route_from_string(name), {}})) {
    out.emplace_back(to_string(r.treatment), r.reason);
  }
  return out;
}

// role, type, width
using ModuleSpec = std::tuple<std::string, std::string, std::int64_t>;
// shape; name and index of the module of every place
using ModelSpec =
    std::tuple<std::vector<std::int64_t>, std::vector<std::pair<std::string, std::size_t>>>;

Role parse_role(std::string_view text) {
  if (text == "embedding") return Role::embedding;
  if (text == "head") return Role::head;
  if (text == "other" || text == "convolution") return Role::other;
  return Role::by_name;
}

struct Model {
  std::vector<ModuleInfo> modules;
  std::vector<ModelParameter> parameters;
};

Model read_model(const std::vector<ModuleSpec>& modules, const std::vector<ModelSpec>& parameters) {
  Model model;
  for (const auto& [role, type, width] : modules) {
    model.modules.push_back({parse_role(role), type, width, role == "convolution"});
  }
  for (const auto& [shape, places] : parameters) {
    ModelParameter& p = model.parameters.emplace_back();
    p.shape = Shape(shape);
    for (const auto& [name, module] : places) p.places.push_back({name, module});
  }
  return model;
}

// Treatment and reason of each parameter of a model, and whether it is a batch of matrices; and
// their rest_share. `elements`: how many of each are stepped.
using ModelRow = std::tuple<std::string, std::string, bool>;

std::pair<std::vector<ModelRow>, double> route_by_modules(
    const std::vector<ModuleSpec>& modules, const std::vector<ModelSpec>& parameters,
    std::string_view route, const std::vector<std::pair<std::string, std::string>>& overrides,
    const std::vector<std::int64_t>& elements) {
  const Model model = read_model(modules, parameters);
  Routing routing{route_from_string(route), {}};
  for (const auto& [pattern, treatment] : overrides) {
    routing.overrides.push_back({pattern, treatment_from_string(treatment)});
  }
  std::vector<ModelRow> out;
  const std::vector<Decision> decisions = route_model(model.modules, model.parameters, routing);
  for (const Decision& d : decisions) {
    out.emplace_back(to_string(d.treatment), d.reason, d.experts);
  }
  return {std::move(out), rest_share(decisions, elements)};
}

// The route that a model takes, and why.
RouteRow choose_route_by_modules(const std::vector<ModuleSpec>& modules,
                                 const std::vector<ModelSpec>& parameters, std::string_view route) {
  const Model model = read_model(modules, parameters);
  const RouteChoice choice =
      choose_route(model.modules, model.parameters, route_from_string(route));
  return {std::string(to_string(choice.route)), choice.reason};
}

// item, owner, first byte within the item, bytes, offset within the owner's message
using PieceRow = std::tuple<std::size_t, int, std::int64_t, std::int64_t, std::int64_t>;

void define_shard_plan(nb::module_& m) {
  m.def("shard_items", nb::overload_cast<const GroupSpec&>(&shard_items));
  m.def("plan_shards", [](const std::vector<ItemRow>& rows, int ranks, std::int64_t header_bytes,
                          std::int64_t short_message) {
    std::vector<ShardItem> items;
    for (const auto& [name, bytes, unit, cost, state] : rows) {
      items.push_back({name, bytes, unit, cost, state});
    }
    return plan_shards(items, ranks,
                       {.header_bytes = header_bytes, .short_message = short_message});
  });
  nb::class_<ShardPlan>(m, "ShardPlan")
      .def_prop_ro("pieces",
                   [](const ShardPlan& plan) {
                     std::vector<PieceRow> out;
                     for (const ShardPiece& p : plan.pieces) {
                       out.emplace_back(p.item, p.rank, p.first, p.bytes, p.offset);
                     }
                     return out;
                   })
      // cost, bytes of weights, bytes of state of each rank
      .def_prop_ro("loads",
                   [](const ShardPlan& plan) {
                     std::vector<std::tuple<double, std::int64_t, std::int64_t>> out;
                     for (const ShardLoad& l : plan.loads) {
                       out.emplace_back(l.cost, l.bytes, l.state_bytes);
                     }
                     return out;
                   })
      .def_ro("message_bytes", &ShardPlan::message_bytes)
      .def_ro("cuts", &ShardPlan::cuts)
      .def_ro("hash", &ShardPlan::hash)
      .def_prop_ro("received_bytes", &ShardPlan::received_bytes)
      .def_prop_ro("cost_ratio", &ShardPlan::cost_ratio);
}

void define(nb::module_& m) {
  make_errors(m);
  define_shard_plan(m);
  m.def("version", [] { return std::string(version()); });
  m.def("with_cuda", [] {
#ifdef RODE_WITH_CUDA
    return true;
#else
    return false;
#endif
  });
  m.def("holds", &holds);
  m.def("same", &same);
  m.def("route", &route);
  m.def("route_model", &route_by_modules);
  m.def("choose_route", &choose_route_by_modules);
  m.def("group_route",
        [](std::string_view optimizer, std::string_view rule, std::string_view name) {
          return std::string(group_route(optimizer, rule, name));
        });
  m.def("planned_state", nb::overload_cast<const GroupSpec&>(&planned_state));
  m.def("planned_gradients", nb::overload_cast<const GroupSpec&>(&planned_gradients));
  m.def("parted_matrices", nb::overload_cast<const GroupSpec&, std::string_view>(&parted_matrices));
  m.def("form_parts",
        nb::overload_cast<const GroupSpec&, const std::vector<PartInputRow>&>(&form_parts));
  m.def("write_parts", nb::overload_cast<const GroupSpec&, const std::vector<PartInputRow>&,
                                         const std::vector<std::array<double, 4>>&>(&write_parts));
  m.def("finite_gradient", &finite_gradient);
  m.def("missing_gradient_text", &missing_gradient_text);
  m.def("bad_weights_text", &bad_weights_text);
  m.def("convert_state", &convert_state);
  m.def("optimizers", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> out;
    for (const OptimizerInfo& o : list_optimizers()) out.emplace_back(o.name, o.summary, o.family);
    return out;
  });
  m.def("preset", [](std::string_view name, const Settings& settings) {
    return std::string(Method::by_name(name, settings).preset());
  });
  m.def("leaves_rest_to_adamw",
        [](std::string_view name) { return Method::by_name(name).leaves_rest_to_adamw(); });
  m.def("zero_norm", [](std::string_view name, const Settings& settings) {
    return Method::by_name(name, settings).zero_norm();
  });
  // Checks the settings and lists every option with the value it then has.
  m.def("options", [](std::string_view name, const Settings& settings) {
    return rows(Method::by_name(name, settings).options());
  });

  nb::class_<Engine>(m, "Engine")
      .def(nb::init<std::string_view, std::uintptr_t, int, std::string_view, bool,
                    const std::vector<GroupSpec>&, nb::object, nb::object, nb::object, nb::callable,
                    nb::callable>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg())
      .def("follow_values", &Engine::follow_values)
      .def("follow_grads", &Engine::follow_grads)
      .def("release_grads", &Engine::release_grads)
      .def("lacks_grads", &Engine::lacks_grads)
      .def("bind_grad", &Engine::bind_grad)
      .def("set_number", &Engine::set_number)
      .def("set_options", &Engine::set_options)
      .def("set_coupling", &Engine::set_coupling)
      .def("set_stream", &Engine::set_stream)
      .def("send_options", [](Engine& e) { e.optimizer().send_options(); })
      .def("step", &Engine::step)
      .def("check", &Engine::check)
      .def("steps_done", [](const Engine& e) { return e.optimizer().steps_done(); })
      .def("set_steps_done", [](Engine& e, std::int64_t n) { e.optimizer().set_steps_done(n); })
      .def("refused_steps", [](const Engine& e) { return e.optimizer().refused_steps(); })
      .def("state_bytes", [](const Engine& e) { return e.optimizer().state_bytes(); })
      .def("workspace_bytes", [](const Engine& e) { return e.optimizer().workspace_bytes(); })
      .def("metadata", [](const Engine& e) { return e.optimizer().metadata(); })
      .def("skipped", [](const Engine& e) { return e.optimizer().skipped(); })
      .def("matrix_diagnostics", &matrix_diagnostics)
      .def("global_diagnostics", &global_diagnostics);
}

}  // namespace
}  // namespace rode::python

NB_MODULE(_engine, m) { rode::python::define(m); }
