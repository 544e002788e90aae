// SPDX-License-Identifier: Apache-2.0
// Which rule a parameter gets: by rank, name, role, shared memory and overrides.
#include "rode/routing.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"
#include "rode/optim/muon.h"

namespace rode {
namespace {

using test::expect_error;

Parameter shaped(std::string name, Shape shape, Role role = Role::by_name) {
  return {.name = std::move(name), .value = {nullptr, shape, DType::f32}, .grad = {}, .role = role};
}

Parameter at(std::string name, float* data, Shape shape) {
  return {.name = std::move(name), .value = view(data, shape), .grad = {}};
}

Treatment treatment(const Parameter& parameter, Route route) {
  return route_parameters(std::array{parameter}, {route, {}}).at(0).treatment;
}

TEST(Routing, LanguageSendsEveryNameOfAnEmbeddingOrHeadToTheRest) {
  for (const char* word : {"emb", "embed", "embed_tokens", "embedding", "embeddings", "wte", "wpe",
                           "lm_head", "head", "output", "unembed", "unembedding"}) {
    for (const std::string& name :
         {std::string(word), std::string(word) + ".weight", "model." + std::string(word),
          "model." + std::string(word) + ".weight"}) {
      EXPECT_EQ(treatment(shaped(name, {8, 4}), Route::language), Treatment::rest) << name;
    }
  }
}

TEST(Routing, LanguageKeepsNamesThatOnlyResembleThem) {
  for (const char* name :
       {"h.0.attn.weight", "member.weight", "heads.weight", "my_head.weight", "output_proj.weight",
        "wtex.weight", "awte.weight", "lm_head2.weight", "layer.out.weight", "Embedding.weight"}) {
    EXPECT_EQ(treatment(shaped(name, {8, 4}), Route::language), Treatment::matrix) << name;
  }
}

TEST(Routing, TheRoleDecidesBeforeTheName) {
  EXPECT_EQ(treatment(shaped("wte.weight", {8, 4}, Role::other), Route::language),
            Treatment::matrix);
  EXPECT_EQ(treatment(shaped("h.0.weight", {8, 4}, Role::embedding), Route::language),
            Treatment::rest);
  EXPECT_EQ(treatment(shaped("h.0.weight", {8, 4}, Role::head), Route::language), Treatment::rest);
}

TEST(Routing, EveryRouteTakesTheRanksItNames) {
  struct Row {
    Route route;
    std::array<bool, 5> matrix;  // by rank, for a plain name
    bool embedding;              // a 2-D embedding
  };
  for (const Row& row : {Row{Route::language, {false, false, true, false, false}, false},
                         Row{Route::vision, {false, false, true, true, true}, true},
                         Row{Route::all_matrices, {false, false, true, false, false}, true},
                         Row{Route::matrix, {false, false, true, true, true}, true},
                         Row{Route::rest, {false, false, false, false, false}, false},
                         Row{Route::everything, {true, true, true, true, true}, true}}) {
    const std::array<Shape, 5> shapes{Shape{}, {3}, {3, 4}, {3, 4, 5}, {3, 4, 5, 6}};
    for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
      EXPECT_EQ(treatment(shaped("conv", shapes[rank]), row.route),
                row.matrix[rank] ? Treatment::matrix : Treatment::rest)
          << to_string(row.route) << " rank " << rank;
    }
    EXPECT_EQ(treatment(shaped("wte", {3, 4}), row.route),
              row.embedding ? Treatment::matrix : Treatment::rest)
        << to_string(row.route);
  }
}

TEST(Routing, NamesOfRoutesReadBackAndUnknownOnesNameTheNearest) {
  for (const Route route : {Route::language, Route::vision, Route::all_matrices, Route::matrix,
                            Route::rest, Route::everything, Route::automatic, Route::lora}) {
    EXPECT_EQ(route_from_string(to_string(route)), route);
  }
  expect_error([] { route_from_string("langauge"); }, ErrorKind::invalid_argument,
               {"'langauge'", "did you mean 'language'?"});
  for (const char* name : {"matrix", "rest", "frozen"}) {
    EXPECT_EQ(to_string(treatment_from_string(name)), name);
  }
  expect_error([] { treatment_from_string("matrices"); }, ErrorKind::invalid_argument,
               {"'matrices'", "did you mean 'matrix'?"});
}

TEST(Routing, ARuleOfAGroupGoesBeforeItsRoute) {
  const Method delegates = Method::by_name("muon"), alone = Method::by_name("sgd");
  for (const Method& method : {delegates, alone}) {
    EXPECT_EQ(group_route(GroupRule::rest, Route::vision, method), Route::rest);
    EXPECT_EQ(group_route(GroupRule::matrix, Route::vision, method), Route::everything);
  }
  EXPECT_EQ(group_route(GroupRule::automatic, Route::vision, delegates), Route::vision);
  EXPECT_EQ(group_route(GroupRule::automatic, Route::vision, alone), Route::everything);
}

// ---- Memory and names -----------------------------------------------------------------

TEST(Routing, TheSameMemoryUnderTwoNamesIsOneParameterTreatedAsAnEmbedding) {
  std::vector<float> memory(64);
  const std::array parameters{at("first", memory.data(), {4, 4}),
                              at("other", memory.data() + 16, {4, 4}),
                              at("second", memory.data(), {4, 4})};
  const auto routed = route_parameters(parameters, {});
  ASSERT_EQ(routed.size(), 2U);
  EXPECT_EQ(routed[0].index, 0U);
  EXPECT_EQ(routed[0].tied, std::vector<std::size_t>{2});
  EXPECT_EQ(routed[0].treatment, Treatment::rest);
  EXPECT_EQ(routed[1].treatment, Treatment::matrix);
  EXPECT_EQ(route_parameters(parameters, {Route::all_matrices, {}})[0].treatment,
            Treatment::matrix);
}

TEST(Routing, TheSameNameTwiceIsTiedWithTheSameMemoryAndRefusedWithoutIt) {
  std::vector<float> memory(64);
  const std::array tied{at("w", memory.data(), {4, 4}), at("w", memory.data(), {4, 4})};
  EXPECT_EQ(route_parameters(tied, {}).size(), 1U);
  const std::array clash{at("w", memory.data(), {4, 4}), at("w", memory.data() + 16, {4, 4})};
  expect_error([&] { route_parameters(clash, {}); }, ErrorKind::invalid_argument,
               {"'w'", "entries 0 and 1"});
  const std::array unbound{shaped("w", {4, 4}), shaped("w", {4, 4})};
  expect_error([&] { route_parameters(unbound, {}); }, ErrorKind::invalid_argument, {"'w'"});
}

TEST(Routing, AParameterWithoutANameIsRefused) {
  expect_error([] { route_parameters(std::array{shaped("", {4})}, {}); },
               ErrorKind::invalid_argument, {"no name"});
}

TEST(Routing, MemoryThatOverlapsInPartIsRefusedWithBothNames) {
  std::vector<float> memory(64);
  const auto refused = [&](const Parameter& a, const Parameter& b) {
    for (const auto& pair : {std::array{a, b}, std::array{b, a}}) {
      expect_error([&] { route_parameters(pair, {}); }, ErrorKind::invalid_argument,
                   {"'a'", "'b'", "share"});
    }
  };
  refused(at("a", memory.data(), {4, 4}), at("b", memory.data() + 15, {4, 4}));
  refused(at("a", memory.data(), {8, 8}), at("b", memory.data() + 4, {2, 2}));
  // The same first byte, but a different shape, length or element type.
  refused(at("a", memory.data(), {4, 4}), at("b", memory.data(), {2, 8}));
  refused(at("a", memory.data(), {4, 4}), at("b", memory.data(), {2, 4}));
  Parameter half = at("b", memory.data(), {4, 4});
  half.value.dtype = DType::bf16;
  refused(at("a", memory.data(), {4, 4}), half);
}

TEST(Routing, NeighboursAndEmptyTensorsDoNotOverlap) {
  std::vector<float> memory(64);
  const std::array parameters{at("a", memory.data(), {4, 4}), at("b", memory.data() + 16, {4, 4}),
                              at("c", memory.data(), {0, 4}), at("d", memory.data(), {0, 4})};
  EXPECT_EQ(route_parameters(parameters, {}).size(), 4U);
}

// ---- Overrides ------------------------------------------------------------------------

TEST(Routing, TheFirstMatchingOverrideWinsOverLaterOnesAndThePreset) {
  const std::array parameters{shaped("h.0.attn", {4, 4}), shaped("h.1.attn", {4, 4}),
                              shaped("wte", {4, 4}), shaped("norm", {4})};
  const Routing routing{
      Route::language,
      {{"h.0.*", Treatment::frozen}, {"h.?.attn", Treatment::rest}, {"wte", Treatment::matrix}}};
  const auto routed = route_parameters(parameters, routing);
  EXPECT_EQ(routed[0].treatment, Treatment::frozen);
  EXPECT_EQ(routed[1].treatment, Treatment::rest);
  EXPECT_EQ(routed[2].treatment, Treatment::matrix);
  EXPECT_EQ(routed[3].treatment, Treatment::rest);
  EXPECT_NE(routed[0].reason.find("h.0.*"), std::string::npos);
}

TEST(Routing, AnOverrideThatMatchesNothingIsRefusedEvenBehindOthers) {
  const std::array parameters{shaped("h.0.attn", {4, 4})};
  expect_error(
      [&] {
        route_parameters(parameters,
                         {Route::language, {{"*", Treatment::rest}, {"h.0", Treatment::matrix}}});
      },
      ErrorKind::invalid_argument, {"'h.0'", "matches no parameter"});
  // One that is hidden by an earlier override still matches something.
  EXPECT_NO_THROW(route_parameters(
      parameters, {Route::language, {{"*", Treatment::rest}, {"h.*", Treatment::matrix}}}));
}

TEST(Routing, AnOverrideReachesTiedWeightsUnderEitherName) {
  std::vector<float> memory(16);
  const std::array parameters{at("wte", memory.data(), {4, 4}),
                              at("lm_head", memory.data(), {4, 4})};
  EXPECT_EQ(route_parameters(parameters, {Route::language, {{"lm_*", Treatment::matrix}}})
                .at(0)
                .treatment,
            Treatment::matrix);
}

// ---- Modules --------------------------------------------------------------------------

// A token table, a position table, a layer, an unknown module, the head, and a vector.
struct SmallLanguageModel {
  std::vector<ModuleInfo> modules{{Role::embedding, "Embedding", 40},
                                  {Role::embedding, "Embedding", 16},
                                  {Role::other, "Linear", 40},
                                  {Role::by_name, "Gate", 0},
                                  {Role::other, "Linear", 40}};
  std::vector<ModelParameter> parameters{
      {{40, 8}, {{"tokens.weight", 0}}}, {{16, 8}, {{"positions.weight", 1}}},
      {{40, 8}, {{"output.weight", 2}}}, {{8, 8}, {{"gate", 3}}},
      {{40, 8}, {{"final.weight", 4}}},  {{40}, {{"final.bias", 4}}}};

  std::vector<std::string> reasons(const Routing& routing = {}) const {
    std::vector<std::string> out;
    for (const Decision& d : route_model(modules, parameters, routing)) {
      out.push_back(std::string(to_string(d.treatment)) + ": " + d.reason);
    }
    return out;
  }
};
using Reasons = std::vector<std::string>;

TEST(RoutingOfModels, FindsTheHeadByTheWidestEmbeddingUnlessItIsKnown) {
  SmallLanguageModel model;
  EXPECT_EQ(model.reasons(), (Reasons{"rest: Embedding", "rest: Embedding", "matrix: Linear",
                                      "matrix: 2-D", "rest: head", "rest: rank 1"}));
  model.modules[2].role = Role::head;
  EXPECT_EQ(model.reasons()[2], "rest: head");
  EXPECT_EQ(model.reasons()[4], "matrix: Linear");
  model.modules[2].role = Role::other;
  model.modules[0] = model.modules[1];  // no vocabulary of 40
  EXPECT_EQ(model.reasons()[4], "matrix: Linear");
}

TEST(RoutingOfModels, OfSeveralHoldersTheGreatestRoleDecidesAndEveryNameIsMatched) {
  SmallLanguageModel model;
  model.parameters[0].places.push_back({"final.weight", 4});  // tied
  model.parameters[2].places.push_back({"again.weight", 2});  // one layer used twice
  model.parameters[3].places.push_back({"twin.gate", 3});
  model.parameters.erase(model.parameters.begin() + 4);
  EXPECT_EQ(model.reasons(), (Reasons{"rest: Embedding, tied", "rest: Embedding", "matrix: Linear",
                                      "matrix: 2-D", "rest: rank 1"}));
  const Reasons overridden = model.reasons({Route::vision, {{"twin.*", Treatment::frozen}}});
  EXPECT_EQ(overridden[3], "frozen: override 'twin.*'");
  EXPECT_EQ(overridden[0], "matrix: rank 2");
  model.parameters[3].places.front().name = "wte";  // the first name is the parameter's
  EXPECT_EQ(model.reasons()[3], "rest: named 'wte'");
  expect_error([&] { model.reasons({Route::language, {{"nothing", Treatment::rest}}}); },
               ErrorKind::invalid_argument, {"'nothing'", "matches no parameter"});
}

// Outside of embeddings, head and overrides: the layer of 40 x 8, the gate of 8 x 8, the bias
// of 40.
TEST(RoutingOfModels, TheShareOfTheRestIsOfWhatTheRouteDecides) {
  SmallLanguageModel model;
  const auto share = [&](const Routing& routing, std::int64_t gate) {
    const std::vector<std::int64_t> elements{320, 128, 320, gate, 320, 40};
    return rest_share(route_model(model.modules, model.parameters, routing), elements);
  };
  EXPECT_DOUBLE_EQ(share({}, 64), 40.0 / (320 + 64 + 40));
  EXPECT_DOUBLE_EQ(share({}, 0), 40.0 / (320 + 40));  // the gate is not stepped
  EXPECT_DOUBLE_EQ(share({Route::automatic, {{"final.bias", Treatment::frozen}}}, 64), 0);
  EXPECT_DOUBLE_EQ(share({Route::automatic, {{"output.*", Treatment::rest}}}, 64),
                   40.0 / (64 + 40));
  EXPECT_DOUBLE_EQ(share({Route::rest, {}}, 64), 1);
  EXPECT_DOUBLE_EQ(share({Route::vision, {}}, 64), 40.0 / (320 + 64 + 320 + 40));  // the head, too
  expect_error([] { rest_share(std::vector<Decision>(2), std::vector<std::int64_t>{1}); },
               ErrorKind::invalid_argument, {"2 decisions", "1 parameters"});
}

TEST(RoutingOfModels, TheAutomaticRouteGoesByWhatTheModelHolds) {
  const SmallLanguageModel words;
  const auto chosen = [](const auto& modules, const auto& parameters) {
    return choose_route(modules, parameters, Route::automatic);
  };
  const RouteChoice language = chosen(words.modules, words.parameters);
  EXPECT_EQ(language.route, Route::language);
  EXPECT_EQ(language.reason, "it has an embedding");
  EXPECT_EQ(words.reasons({Route::automatic, {}}), words.reasons());
  const std::vector<ModuleInfo> layers{{Role::other, "Conv1d", 0, true},
                                       {Role::other, "Linear", 4}};
  const std::vector<ModelParameter> pictures{{{8, 4, 3}, {{"0.weight", 0}}},
                                             {{4, 8}, {{"1.weight", 1}}}};
  EXPECT_EQ(chosen(layers, pictures).route, Route::vision);
  EXPECT_EQ(route_model(layers, pictures, {Route::automatic, {}})[0].treatment, Treatment::matrix);
  EXPECT_EQ(choose_route(layers, pictures, Route::language).route, Route::language);
  EXPECT_EQ(choose_route(layers, pictures, Route::language).reason, "");
  const std::vector<ModelParameter> plain{{{4, 8}, {{"1.weight", 1}}}};
  EXPECT_EQ(chosen(std::vector<ModuleInfo>{{}, {Role::other, "Linear", 4}}, plain).route,
            Route::language);
  SmallLanguageModel adapted;
  adapted.parameters.push_back({{4, 8}, {{"h.0.lora_A.weight", 3}}});
  EXPECT_EQ(chosen(adapted.modules, adapted.parameters).route, Route::lora);
  const Reasons reasons = adapted.reasons({Route::automatic, {}});
  EXPECT_EQ(reasons.back(), "matrix: LoRA");
  EXPECT_EQ(reasons[2], "rest: not LoRA's");
}

TEST(Routing, WithoutModulesTheAutomaticRouteGoesByNamesAndRanks) {
  const auto matrices = [](const std::vector<Parameter>& parameters) {
    std::vector<std::string> out;
    for (const RoutedParameter& r : route_parameters(parameters, {Route::automatic, {}})) {
      if (r.treatment == Treatment::matrix) out.push_back(parameters[r.index].name);
    }
    return out;
  };
  const std::vector<std::string> both{"a", "b"}, one{"b"}, lora{"x.lora_A.weight"};
  EXPECT_EQ(matrices({shaped("a", {4, 3, 3, 3}), shaped("b", {4, 8})}), both);
  EXPECT_EQ(matrices({shaped("a", {4, 3, 3, 3}), shaped("b", {4, 8}), shaped("wte", {9, 4})}), one);
  EXPECT_EQ(matrices({shaped("x.lora_A.weight", {4, 8}), shaped("b", {4, 8})}), lora);
}

TEST(Routing, AColumnIsAVectorAndExpertsAreABatch) {
  const auto reason = [](const Parameter& p, Route route) {
    const RoutedParameter r = route_parameters({&p, 1}, {route, {}}).front();
    return std::string(to_string(r.treatment)) + ": " + r.reason;
  };
  EXPECT_EQ(reason(shaped("g", {16, 1}), Route::language), "rest: one column");
  EXPECT_EQ(reason(shaped("g", {16, 1, 1, 1}), Route::vision), "rest: one column");
  EXPECT_EQ(reason(shaped("g", {16, 1}), Route::all_matrices), "matrix: rank 2");
  EXPECT_EQ(reason(shaped("g", {1, 16}), Route::language), "matrix: 2-D");
  EXPECT_EQ(reason(shaped("g", {16, 1, 3, 3}), Route::vision), "matrix: rank 4");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.gate_up", {4, 8, 16}), Route::language),
            "matrix: batch of matrices");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.gate_up_bias", {4, 8}), Route::language),
            "rest: biases of experts");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.bias", {4, 1, 8}), Route::language),
            "rest: biases of experts");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.bias", {4, 8, 1}), Route::all_matrices), "rest: rank 3");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.0.gate.weight", {4, 8}), Route::language),
            "matrix: 2-D");
  EXPECT_EQ(reason(shaped("h.0.mlp.experts.gate_up", {4, 8, 16}), Route::all_matrices),
            "matrix: rank 3");
  EXPECT_EQ(reason(shaped("filters", {4, 8, 16}), Route::language), "rest: rank 3");
  Parameter given = shaped("filters", {4, 8, 16});
  given.experts = true;
  EXPECT_EQ(reason(given, Route::language), "matrix: batch of matrices");
  given = shaped("h.0.mlp.experts.gate_up", {4, 8, 16});
  given.experts = false;
  EXPECT_EQ(reason(given, Route::language), "rest: rank 3");
  given = shaped("h.0.mlp.experts.bias", {4, 8});
  given.experts = true;
  EXPECT_THROW(reason(given, Route::language), Error);
}

TEST(Routing, TheTableShowsNameShapeRuleRatesReasonAndTies) {
  std::vector<float> memory(64);
  const std::array parameters{at("model.embed_tokens.weight", memory.data(), {4, 4}),
                              at("h.0.weight", memory.data() + 16, {4, 8}),
                              at("norm", memory.data() + 48, {4}),
                              at("lm_head.weight", memory.data(), {4, 4})};
  const std::string table =
      routing_table(parameters, route_parameters(parameters, {}), MuonOptions{.lr = 2.257e-4});
  const std::string expected =
      "parameter                  shape                 rule     lr          weight_decay  reason\n"
      "model.embed_tokens.weight  (4, 4)                rest     2.897e-05   0.0009        tied "
      "embedding, tied with 'lm_head.weight'\n"
      "h.0.weight                 (4, 8)                matrix   0.0002257   0             2-D\n"
      "norm                       (4)                   rest     2.897e-05   0.0009        rank "
      "1\n";
  EXPECT_EQ(table, expected);
}

}  // namespace
}  // namespace rode
