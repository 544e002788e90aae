# SPDX-License-Identifier: Apache-2.0
"""AdamW and SGD beside torch's own: arguments, defaults, and checkpoints of either in the other."""

import copy
import inspect
import io

import pytest
import torch

import rode

PAIRS = [(rode.AdamW, torch.optim.AdamW), (rode.SGD, torch.optim.SGD)]
pairs = pytest.mark.parametrize(("ours", "theirs"), PAIRS)
SHAPES = [(17, 9), (5,), (2, 3, 4), ()]
STEPS = 20

# The options of two groups, and of the optimizer.
CASES = [
    (0, {"lr": 1e-2}, {}),
    (0, {"lr": 1e-2, "maximize": True, "weight_decay": 0.2}, {}),
    (
        0,
        {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-3},
        {"lr": 3e-3, "weight_decay": 0.3, "betas": (0.5, 0.6)},
    ),
    (1, {"lr": 1e-2}, {}),
    (1, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.5, "lr": 3e-2}),
    (1, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}, {"weight_decay": 0.2}),
    (1, {"lr": 1e-2, "momentum": 0.9, "maximize": True, "weight_decay": 0.1}, {}),
]
cases = pytest.mark.parametrize(("pair", "options", "group"), CASES)


def make(kind, params, options, group):
    return kind([{"params": params[:2]}, {"params": params[2:], **group}], **options)


def problem(seed=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    return draw(), [draw() for _ in range(STEPS)]


def steps(optimizer, params, grads):
    for row in grads:
        for p, g in zip(params, row, strict=True):
            p.grad = g.clone()
        optimizer.step()


def parameters(start):
    return [torch.nn.Parameter(w.clone()) for w in start]


def assert_equal_to_rounding(params, others, start, dtype=torch.float32):
    unit = torch.finfo(dtype).eps / 2
    for p, q, w in zip(params, others, start, strict=True):
        p, q, w = p.detach().double(), q.detach().double(), w.double()
        # Each step rounds every weight once, in either implementation.
        rounding = 2 * STEPS * unit * torch.linalg.norm(w)
        assert torch.linalg.norm(p - q) <= 1e-6 * torch.linalg.norm(q - w) + rounding


@cases
@pytest.mark.parametrize("first", ["torch", "rode"])
def test_ten_steps_in_one_and_ten_in_the_other_are_twenty_in_torch(pair, options, group, first):
    start, grads = problem()
    kinds = PAIRS[pair] if first == "rode" else PAIRS[pair][::-1]
    params, whole = parameters(start), parameters(start)
    steps(make(PAIRS[pair][1], whole, options, group), whole, grads)

    before = make(kinds[0], params, options, group)
    steps(before, params, grads[:10])
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    after = make(kinds[1], params, {"lr": 123.0}, {})  # options are the checkpoint's
    after.load_state_dict(saved)
    steps(after, params, grads[10:])
    assert_equal_to_rounding(params, whole, start)


@pairs
def test_there_and_back_again(ours, theirs):
    start, grads = problem()
    options = {"lr": 1e-2, "weight_decay": 0.1}
    options |= {"momentum": 0.9} if ours is rode.SGD else {}
    params, whole = parameters(start), parameters(start)
    steps(theirs(whole, **options), whole, grads)
    saved = None
    for turn, kind in enumerate((ours, theirs, ours, theirs)):
        optimizer = kind(params, **options)
        if saved is not None:
            optimizer.load_state_dict(saved)
        steps(optimizer, params, grads[5 * turn : 5 * turn + 5])
        saved = copy.deepcopy(optimizer.state_dict())
    assert_equal_to_rounding(params, whole, start)


@pairs
def test_a_state_dict_has_torchs_keys_and_types_and_files_have_the_engines(ours, theirs):
    start, grads = problem()
    options = {"lr": 1e-2} | ({"momentum": 0.9} if ours is rode.SGD else {})
    found = []
    for kind in (ours, theirs):
        params = parameters(start)
        optimizer = kind(params, **options)
        steps(optimizer, params, grads[:2])
        state = optimizer.state_dict()["state"]
        found.append({
            (number, key): (value.shape, value.dtype)
            for number, entries in state.items()
            for key, value in entries.items()
        })  # fmt: skip
        if kind is ours:
            keys = {name.rsplit(".", 1)[1] for name in optimizer.named_state()}
            adamw = {"exp_avg", "exp_avg_sq", "step"}
            assert keys == (adamw if ours is rode.AdamW else {"momentum"})
            assert optimizer.named_state().keys() == {
                f"state.param.{n}.{key}" for n in range(len(SHAPES)) for key in keys
            }
    assert found[0] == found[1]


@pytest.mark.parametrize("rounding", ["nearest", "exact"])
def test_torchs_state_of_bf16_weights_is_taken_as_fp32(rounding):
    start, grads = problem(dtype=torch.bfloat16)
    params = parameters(start)
    theirs = torch.optim.AdamW(params, lr=1e-2)
    steps(theirs, params, grads[:3])
    ours = rode.AdamW(params, lr=1e-2, rounding=rounding)
    ours.load_state_dict(theirs.state_dict())
    for p in params:
        assert ours.state[p]["exp_avg"].dtype is torch.float32
        assert torch.equal(ours.state[p]["exp_avg"], theirs.state[p]["exp_avg"].float())
        assert ours.state[p]["step"].tolist() == [3]
    steps(ours, params, grads[3:5])
    back = torch.optim.AdamW(params, lr=1e-2)
    back.load_state_dict(ours.state_dict())
    steps(back, params, grads[5:6])
    ours.load_state_dict(back.state_dict())
    steps(ours, params, grads[6:7])
    assert ours.state[params[0]]["step"].tolist() == [7]


def test_checkpoints_of_before_with_the_engines_keys_still_load():
    start, grads = problem()
    params = parameters(start)
    for kind, options in ((rode.AdamW, {}), (rode.SGD, {"momentum": 0.9})):
        optimizer, other = kind(params, **options), kind(params, **options)
        steps(optimizer, params, grads[:2])
        saved = optimizer.state_dict()
        saved["state"] = {n: dict(optimizer.state[p]) for n, p in enumerate(params)}
        other.load_state_dict(saved)
        for p in params:
            for key, value in optimizer.state[p].items():
                assert torch.equal(other.state[p][key], value)
                assert other.state[p][key].dtype is value.dtype


def test_a_count_that_is_none_is_refused_by_name():
    p = torch.nn.Parameter(torch.randn(3))
    optimizer = rode.AdamW([p])
    state = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    for step in (torch.tensor(1.5), torch.tensor(-1.0), torch.ones(2), float("nan")):
        saved = {**optimizer.state_dict(), "state": {0: {**state, "step": step}}}
        with pytest.raises(rode.Error, match=r"'step' of parameter 'param\.0'"):
            optimizer.load_state_dict(saved)
    assert not optimizer.state
    optimizer.load_state_dict({**saved, "state": {0: {**state, "step": 4}}})  # of an old torch
    assert optimizer.state[p]["step"].tolist() == [4]


# ---- Arguments ------------------------------------------------------------------------------


@pairs
def test_arguments_are_torchs_in_order_and_default(ours, theirs):
    own = inspect.signature(ours).parameters
    for index, (name, parameter) in enumerate(inspect.signature(theirs).parameters.items()):
        assert own[name].default == parameter.default, name
        assert own[name].kind == parameter.kind, name
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert list(own)[index] == name
    p = torch.nn.Parameter(torch.randn(3))
    group, other = ours([p]).param_groups[0], theirs([p]).param_groups[0]
    for key in inspect.signature(theirs).parameters:
        assert group[key] == other[key], key


@pairs
@pytest.mark.parametrize("of", ["parameters", "module"])
def test_plain_use_is_torchs_over_all_parameters(ours, theirs, of):
    def run(kind):
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Embedding(9, 6), torch.nn.Linear(6, 5), torch.nn.LayerNorm(5)
        )
        target = torch.randn(9, 5)
        optimizer = kind(model if of == "module" and kind is ours else model.parameters(), 1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            (model(torch.arange(9)) - target).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for p, q in zip(run(ours), run(theirs), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_a_module_has_another_rate_for_the_rest_only_where_one_is_given():
    model = torch.nn.Linear(4, 3)
    for kind in (rode.AdamW, rode.SGD):
        matrices, rest = kind(model, 0.5, weight_decay=0.25).param_groups
        assert (matrices["lr"], rest["lr"]) == (0.5, 0.5)
        assert (matrices["weight_decay"], rest["weight_decay"]) == (0.25, 0.25)
        given = {"lr_rest": 0.125, "weight_decay_rest": 0.0}
        _, rest = kind(model, 0.5, weight_decay=0.25, **given).param_groups
        assert (rest["lr"], rest["weight_decay"]) == (0.125, 0.0)


def test_switches_of_torchs_loops_mean_nothing():
    start, grads = problem()
    results = []
    for switches in ({}, {"foreach": True, "differentiable": True, "fused": False}):
        for kind, more in ((rode.AdamW, {"capturable": True} if switches else {}), (rode.SGD, {})):
            params = parameters(start)
            optimizer = kind(params, **switches, **more)
            steps(optimizer, params, grads[:3])
            results.append(params)
    for a, b in ((0, 2), (1, 3)):
        assert all(torch.equal(p, q) for p, q in zip(results[a], results[b], strict=True))
    with pytest.raises(ValueError, match="non-leaf"):  # though torch's differentiable takes them
        rode.SGD([params[0] * 2], differentiable=True)


REFUSED = [(rode.AdamW, "amsgrad", False, True), (rode.SGD, "dampening", 0, 0.5)]


@pytest.mark.parametrize(("kind", "key", "default", "value"), REFUSED)
def test_what_is_not_implemented_is_refused_by_name_only_where_set(kind, key, default, value):
    p = torch.nn.Parameter(torch.randn(3))
    p.grad = torch.ones(3)
    optimizer = kind([p], **{key: default})
    optimizer.step()
    with pytest.raises(ValueError, match=f"'{key}'"):
        kind([p], **{key: value})
    q = torch.nn.Parameter(torch.randn(3))
    with pytest.raises(ValueError, match=f"'{key}'"):
        optimizer.add_param_group({"params": [q], key: value})
    assert len(optimizer.param_groups) == 1
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0][key] = value
    with pytest.raises(ValueError, match=f"'{key}'"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0][key] == default
    before = p.detach().clone()
    optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError, match=f"'{key}'"):
        optimizer.step()
    assert torch.equal(p, before)


def test_coupled_decay_of_adam_is_refused():
    p = torch.nn.Parameter(torch.randn(3))
    optimizer = rode.AdamW([p])
    saved = torch.optim.Adam([p], weight_decay=0.1).state_dict()
    if "decoupled_weight_decay" not in saved["param_groups"][0]:
        pytest.skip("this torch's Adam does not say that its decay is coupled")
    with pytest.raises(ValueError, match="'decoupled_weight_decay'"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(torch.optim.Adam([p]).state_dict())
    assert optimizer.param_groups[0]["weight_decay"] == 0


def test_nesterov_needs_momentum():
    p = torch.nn.Parameter(torch.randn(3))
    with pytest.raises(ValueError, match="nesterov.*momentum > 0"):
        rode.SGD([p], nesterov=True)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_torchs_state_that_a_program_puts_there_itself_is_taken(kind):
    """As ZeroRedundancyOptimizer does: no load_state_dict is called."""
    options = {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.1}
    weights = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    theirs = getattr(torch.optim, kind)([weights[0]], **options)
    ours = getattr(rode, kind)([weights[1]], **options)
    for t in range(4):
        for p in weights:
            p.grad = torch.full_like(p, 0.5 + t)
        theirs.step()
        if t == 1:
            with torch.no_grad():
                weights[1].copy_(weights[0])
            ours.state[weights[1]] = copy.deepcopy(theirs.state_dict()["state"][0])
        elif t > 1:
            ours.step()
    torch.testing.assert_close(weights[1], weights[0])


def test_momentum_that_comes_and_goes_is_torchs():
    weights = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    pair = torch.optim.SGD([weights[0]], lr=0.1), rode.SGD([weights[1]], lr=0.1)
    for t, momentum in enumerate((0, 0, 0.9, 0.9, 0, 0, 0.9)):
        for optimizer, p in zip(pair, weights, strict=True):
            p.grad = torch.full_like(p, 1.0 + t)
            optimizer.param_groups[0]["momentum"] = momentum
            optimizer.step()
        torch.testing.assert_close(weights[1], weights[0])


def test_none_is_no_rate():
    p = [torch.nn.Parameter(torch.ones(2))]
    for make in (lambda: rode.AdamW(p, lr=None), lambda: rode.SGD(p, momentum=None)):
        with pytest.raises(rode.OptionError, match="got None"):
            make()


def test_lazy_parameters_wait_for_the_first_step():
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    optimizer = rode.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
