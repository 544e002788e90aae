# SPDX-License-Identifier: Apache-2.0
"""Which rule steps which parameter, for every route and optimizer."""

import pytest

import oracles
from compare import assert_state, assert_weight, follow
from harness import tensors_of
from problems import problem, with_soap_state

SHAPES = {
    "tok_emb.weight": (30, 8),
    "embed_tokens.weight": (30, 8),
    "wte.weight": (30, 8),
    "transformer.wpe.weight": (12, 8),
    "h.0.attn.c_attn.weight": (24, 8),
    "h.0.mlp.embedder.weight": (16, 8),
    "h.0.mlp.memb.weight": (16, 8),
    "h.0.headroom.weight": (8, 8),
    "h.0.attn.output_proj.weight": (8, 8),
    "lm_head.weight": (30, 8),
    "head.weight": (10, 8),
    "output.weight": (10, 8),
    "unembedding.weight": (10, 8),
    "norm.weight": (8,),
    "scale": (1,),
    "conv.weight": (6, 4, 3, 3),
}
# A dotted component begins with "emb" or "unembed", or equals one of the known names.
# "tok_emb" begins with neither: by name alone it is a matrix.
LANGUAGE = {
    "tok_emb.weight",
    "h.0.attn.c_attn.weight",
    "h.0.mlp.memb.weight",
    "h.0.headroom.weight",
    "h.0.attn.output_proj.weight",
}
RANK2 = {name for name, shape in SHAPES.items() if len(shape) == 2}
RANK2_AND_MORE = {name for name, shape in SHAPES.items() if len(shape) >= 2}
ROUTES = {
    "language": LANGUAGE,
    "vision": RANK2_AND_MORE,
    "all_matrices": RANK2,
    "matrix": RANK2_AND_MORE,
    "rest": set(),
    None: RANK2_AND_MORE,
}


def parameters(optimizer, matrices, steps=3):
    problems = {}
    for name, shape in SHAPES.items():
        p = problem(shape, steps, seed=3)
        problems[name] = with_soap_state(p) if optimizer == "soap" and name in matrices else p
    return problems


@pytest.mark.parametrize("route", list(ROUTES), ids=str)
@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
def test_route(rode, optimizer, route):
    matrices = ROUTES[route]
    problems = parameters(optimizer, matrices)
    output = rode.step(optimizer, tensors_of(problems), steps=3, route=route)
    for name, p in problems.items():
        matrix = name in matrices
        trajectory = follow(optimizer, p, name=name, matrix=matrix)
        assert_weight(output[f"param.{name}"], trajectory, what=f"{name}, matrix {matrix}")
        assert_state(output, trajectory, name=name, soap=optimizer == "soap" and matrix)
        assert (f"diag.{name}.rho" in output) == (matrix and optimizer.startswith("rode"))


def test_split_patterns_choose_parameters_by_name(rode):
    problems = {
        name: problem((24, 8), 3) for name in ("h.0.qkv.weight", "h.1.qkv.weight", "h.1.out.weight")
    }
    splits = "h.0.*=8+8+8,*.qkv.weight=12+12"
    for optimizer in ("rode", "muon-rms", "muon-normproj"):
        output = rode.step(optimizer, tensors_of(problems), steps=3, options={"splits": splits})
        for name, p in problems.items():
            trajectory = follow(optimizer, p, {"splits": splits}, name=name)
            assert_weight(output[f"param.{name}"], trajectory, what=name)
            assert_state(output, trajectory, name=name)


@pytest.mark.parametrize(
    "optimizer,options",
    [
        ("rode", {"splits": "c=12+4+8"}),
        ("muon", {}),
        ("muon-rms", {"splits": "c=3"}),
        ("mars-m", {}),
        ("rode", {"normalize": "rows", "splits": "c=12+4+8"}),
        ("muon-normproj", {"normalize": "rows"}),
        ("mars-m", {"normalize": "rows"}),
    ],
)
def test_matrices_stored_fan_in_first_use_their_true_fan_out(rode, optimizer, options):
    """Hugging Face GPT-2's Conv1D keeps the transpose: scale and blocks must not."""
    problems = {"c": problem((8, 24), 3), "d": problem((8, 24), 3, seed=2)}
    output = rode.step(
        optimizer, tensors_of(problems), steps=3, options=options, extra=["--layout", "c=in_out"]
    )
    for name, p in problems.items():
        trajectory = follow(optimizer, p, options, name=name, in_out=name == "c")
        assert_weight(output[f"param.{name}"], trajectory, what=name)
        assert_state(output, trajectory, name=name)


def test_overrides_win_over_the_route(rode):
    problems = {name: problem((12, 8), 3, seed=i) for i, name in enumerate(("a", "b", "c"))}
    output = rode.step(
        "rode",
        tensors_of(problems),
        steps=3,
        extra=["--override", "a=rest", "--override", "b=frozen"],
    )
    assert_weight(output["param.a"], follow("rode", problems["a"], matrix=False))
    assert_weight(output["param.c"], follow("rode", problems["c"]))
    assert (output["param.b"].numpy() == problems["b"].weight).all()
    assert not any(key.startswith("state.b.") for key in output)
