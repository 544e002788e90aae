# SPDX-License-Identifier: Apache-2.0
"""The flags of `rode step` that change how a file is stepped, and what they print."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import oracles
from compare import Trajectory, assert_weight, distance, follow
from harness import assert_same_bits, state_tensors, tensors_of, to_torch
from problems import Problem, problem

FAILED, USAGE = 1, 2
BACKENDS = ["cpu", "reference"]
RATES = ("lr", "lr_rho", "lr_rest")


def multiplier(t, warmup, total):
    if t < warmup:
        return (t + 1) / warmup
    return (1 + math.cos(math.pi * (t - warmup) / (total - warmup))) / 2 if t < total else 0.0


def follow_scheduled(optimizer, p, warmup, total):
    """The oracle with its rates scaled by hand before every step."""
    rule = oracles.make(optimizer, p.weight.astype(np.float64))
    weight = start = p.weight.astype(np.float64)
    of_torch = hasattr(rule, "optimizer")
    rates = {"lr": rule.optimizer.param_groups[0]["lr"]} if of_torch else dict(rule.o)
    for t, grad in enumerate(p.grads):
        scaled = {key: multiplier(t, warmup, total) * rates[key] for key in RATES if key in rates}
        if of_torch:
            rule.optimizer.param_groups[0].update(scaled)
        else:
            rule.o = {**rule.o, **scaled}
        weight = rule.step(weight, grad.astype(np.float64))
    return Trajectory(start, weight, rule, p.steps, float(np.linalg.norm(p.grads[-1])))


def metadata(path):
    with safe_open(str(path), "pt") as file:
        return file.metadata()


def write_with_steps(rode, tensors, steps_before):
    path = rode.scratch / "counted.safetensors"
    save_file(
        {key: to_torch(value) for key, value in tensors.items()},
        str(path),
        {"rode.step": str(steps_before)},
    )
    return path


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["rode", "muon", "adamw"])
def test_cosine_schedule_scales_every_rate(rode, optimizer, backend):
    steps, warmup, total = 8, 3, 12
    problems = {"w": problem((24, 16), steps), "bias": problem((19,), steps)}
    extra = ["--schedule", "cosine", "--warmup", warmup, "--total", total]
    run = lambda *flags: rode.step(
        optimizer, tensors_of(problems), steps=steps, backend=backend, extra=flags
    )
    output, constant = run(*extra), run()
    for name, p in problems.items():
        expected = follow_scheduled(optimizer, p, warmup, total)
        assert_weight(output[f"param.{name}"], expected, what=name)
        assert distance(constant[f"param.{name}"], expected.weight) > expected.bound()


def test_nothing_moves_after_the_end_of_the_schedule(rode):
    tensors = tensors_of({"w": problem((9, 5)), "bias": problem((7,))})
    path = write_with_steps(rode, tensors, 5)
    for total, moves in ((6, True), (5, False)):
        target = rode.scratch / f"out{total}.safetensors"
        extra = ["--schedule", "cosine", "--total", total]
        done = rode.call(*rode.step_arguments("muon", path, target, extra=extra))
        assert done.returncode == 0, done.stderr
        for name in ("w", "bias"):
            moved = distance(load_file(str(target))[f"param.{name}"], tensors[f"param.{name}"])
            assert (moved > 0) == moves, (total, name)


@pytest.mark.parametrize(
    "flags",
    [
        ["--warmup", "3"],
        ["--total", "3"],
        ["--schedule", "cosine"],
        ["--schedule", "cosine", "--total", "3", "--warmup", "4"],
        ["--schedule", "linear", "--total", "3"],
    ],
    ids=" ".join,
)
def test_schedules_that_make_no_sense_are_wrong_usage(rode, flags):
    done, target = rode.try_step("rode", tensors_of({"w": problem((4, 3))}), extra=flags)
    assert done.returncode == USAGE and not target.exists()
    assert flags[0] in done.stderr or "cosine" in done.stderr


def halves(tensors, steps, cut):
    """Gradients of the steps before and from `cut`, counted from 0 in both."""
    first, second = {}, {}
    for key, value in tensors.items():
        if not key.startswith("grad@"):
            continue
        k, name = key[len("grad@") :].split(".", 1)
        into, at = (first, int(k)) if int(k) < cut else (second, int(k) - cut)
        into[f"grad@{at}.{name}"] = value
    return first, second


@pytest.mark.parametrize("optimizer", ["rode", "soap", "adamw"])
@pytest.mark.parametrize(
    "kind",
    [["--schedule", "cosine", "--warmup", 4, "--total", 25], ["--set", "rounding=stochastic"]],
    ids=["schedule", "stochastic rounding"],
)
def test_ten_and_ten_steps_are_twenty(rode, optimizer, kind):
    """Schedule and random draws go by the step count, which travels in the file."""
    steps, cut = 20, 10
    tensors = tensors_of({"w": problem((24, 16), steps), "bias": problem((19,), steps)})
    if "--set" in kind:
        tensors = {key: to_torch(value).to(torch.bfloat16) for key, value in tensors.items()}
    first_grads, second_grads = halves(tensors, steps, cut)
    weights = {key: value for key, value in tensors.items() if key.startswith("param.")}

    done, whole_path = rode.try_step(optimizer, tensors, steps=steps, extra=kind)
    assert done.returncode == 0, done.stderr
    done, first_path = rode.try_step(optimizer, {**weights, **first_grads}, steps=cut, extra=kind)
    assert done.returncode == 0, done.stderr
    assert metadata(first_path)["rode.step"] == str(cut)
    first = state_tensors(load_file(str(first_path)))

    def second_half(steps_before):
        source = write_with_steps(rode, {**first, **second_grads}, steps_before)
        target = rode.scratch / "second.safetensors"
        call = rode.call(
            *rode.step_arguments(optimizer, source, target, steps=steps - cut, extra=kind)
        )
        assert call.returncode == 0, call.stderr
        return target

    assert metadata(second_half(cut))["rode.step"] == metadata(whole_path)["rode.step"] == "20"
    whole = load_file(str(whole_path))
    assert_same_bits(whole, load_file(str(second_half(cut))))
    forgotten = load_file(str(second_half(0)))
    assert not torch.equal(forgotten["param.w"], whole["param.w"]), "the count had no effect"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [2**62 + 1, 2**63, -1, "1.0", ""])
def test_step_counts_near_overflow_are_refused(rode, count, backend):
    path = write_with_steps(rode, tensors_of({"w": problem((4, 3))}), count)
    target = rode.scratch / "out.safetensors"
    done = rode.call(*rode.step_arguments("rode", path, target, backend=backend))
    assert done.returncode == FAILED and not target.exists()
    assert "rode.step" in done.stderr and f"'{count}'" in done.stderr


def bad_step(problems, kind):
    """Step 1 of b.weight spoilt; the policy flag that tolerates it."""
    if kind == "missing":
        tensors = tensors_of(problems)
        del tensors["grad@1.b.weight"]
        return tensors, ["--on-missing", "skip"]
    problems["b.weight"].grads[1][2, 1] = {"nan": np.nan, "inf": np.inf}[kind]
    return tensors_of(problems), ["--on-non-finite", "skip"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["rode", "adamw"])
@pytest.mark.parametrize("kind", ["nan", "inf", "missing"])
def test_skip_leaves_one_parameter_out_of_one_step(rode, optimizer, kind, backend):
    problems = {"a.weight": problem((8, 6), 3, seed=1), "b.weight": problem((5, 7), 3, seed=2)}
    whole = problems["b.weight"]
    gap = Problem(whole.weight, [whole.grads[0].copy(), whole.grads[2].copy()], whole.seed)
    tensors, flags = bad_step(problems, kind)
    done, target = rode.try_step(
        optimizer, tensors, steps=3, backend=backend, extra=[*flags, "--json"]
    )
    assert done.returncode == 0, done.stderr
    output = load_file(str(target))
    assert_weight(output["param.a.weight"], follow(optimizer, problems["a.weight"]))
    assert_weight(output["param.b.weight"], follow(optimizer, gap))
    if optimizer == "adamw":
        assert [int(output[f"state.{n}.step"]) for n in problems] == [3, 2]
    assert json.loads(done.stdout)["skipped"] == {"b.weight": 1}
    notes = [line for line in done.stderr.splitlines() if "1 of 3" in line]
    assert len(notes) == 1 and "'b.weight' was skipped" in notes[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_skipped_parameter_counts_in_the_weight_norm_alone(rode, backend):
    problems = {"a": problem((8, 6), seed=1), "b": problem((5, 7), seed=2)}
    tensors = tensors_of(problems)
    del tensors["grad.b"]
    done, target = rode.try_step(
        "rode", tensors, backend=backend, extra=["--on-missing", "skip", "--json"]
    )
    assert done.returncode == 0, done.stderr
    report, output = json.loads(done.stdout), load_file(str(target))
    a, b = problems["a"], problems["b"]
    assert torch.equal(output["param.b"], torch.tensor(b.weight))
    norms = np.linalg.norm([np.linalg.norm(a.weight), np.linalg.norm(b.weight)])
    assert math.isclose(report["weight_norm"], norms, rel_tol=1e-6)
    assert math.isclose(report["gradient_norm"], np.linalg.norm(a.grads[0]), rel_tol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_gradient_hints_at_skipping(rode, backend):
    p = problem((5, 7))
    p.grads[0][0, 0] = np.nan
    done, _ = rode.try_step("rode", tensors_of({"w": p}), backend=backend)
    assert done.returncode == FAILED
    assert "'--on-non-finite skip'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_are_not_finite_are_never_skipped(rode, backend):
    p = problem((5, 7))
    p.weight[0, 0] = np.nan
    flags = ["--on-non-finite", "skip"]
    done, target = rode.try_step("rode", tensors_of({"w": p}), backend=backend, extra=flags)
    assert done.returncode == FAILED and not target.exists()
    assert "'w'" in done.stderr and "hint" not in done.stderr


def test_loop_agrees_with_batches_to_rounding(rode):
    """Large enough for the blocked symmetric products, whose sums have another order."""
    problems = {name: problem((700, 600), seed=seed) for seed, name in enumerate("ab", 1)}
    tensors = tensors_of(problems)
    batched, loop = rode.step("rode", tensors), rode.step("rode", tensors, extra=["--loop"])
    for name, p in problems.items():
        expected = follow("rode", p)
        assert_weight(batched[f"param.{name}"], expected)
        assert_weight(loop[f"param.{name}"], expected)
        assert not torch.equal(batched[f"param.{name}"], loop[f"param.{name}"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_show_routing_names_rule_and_reason(rode, backend):
    problems = {
        "transformer.wte.weight": problem((11, 4)),
        "h.0.mlp.weight": problem((8, 4)),
        "h.0.mlp.bias": problem((8,)),
        "h.0.old.weight": problem((8, 4)),
    }
    extra = ["--show-routing", "--override", "*.old.*=frozen"]
    done, target = rode.try_step(
        "rode", tensors_of(problems), route="language", backend=backend, extra=extra
    )
    assert done.returncode == 0 and done.stderr.count("\n") == 1  # the input has no checksum
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    expected = {
        "transformer.wte.weight": ("rest", "wte"),
        "h.0.mlp.weight": ("matrix", ""),
        "h.0.mlp.bias": ("rest", "rank 1"),
        "h.0.old.weight": ("frozen", "*.old.*"),
    }
    for name, (rule, reason) in expected.items():
        assert f" {rule} " in rows[name] and reason in rows[name], rows[name]
    keys = load_file(str(target)).keys()
    assert (
        "state.transformer.wte.weight.exp_avg" in keys and "state.h.0.mlp.weight.momentum" in keys
    )
    assert not any(key.startswith("state.h.0.old") for key in keys)


def test_names_cannot_drive_the_terminal(rode):
    name = "w\x1b[31m\n"
    p = problem((4, 3))
    done, _ = rode.try_step("rode", tensors_of({name: p}), extra=["--show-routing"])
    assert done.returncode == 0
    assert "w\\x1b[31m\\x0a" in done.stdout and "\x1b" not in done.stdout
    missing = {f"param.{name}": p.weight}
    done, _ = rode.try_step("rode", missing, extra=["--on-missing", "skip"])
    assert done.returncode == 0
    assert "w\\x1b[31m\\x0a" in done.stderr and "\x1b" not in done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_step_json_reports_the_last_step(rode, backend):
    problems = {"w": problem((24, 16), 2), "bias": problem((19,), 2)}
    source = write_with_steps(rode, tensors_of(problems), 40)
    target = rode.scratch / "out.safetensors"
    extra = ["--json", "--show-routing"]
    arguments = {"steps": 2, "backend": backend, "extra": extra}
    done = rode.call(*rode.step_arguments("rode", source, target, **arguments))
    assert done.returncode == 0
    report = json.loads(done.stdout)  # nothing else: the routing went to stderr
    assert "bias" in done.stderr
    assert list(report) == [
        "optimizer",
        "backend",
        "steps",
        "steps_done",
        "weight_norm",
        "update_norm",
        "update_ratio",
        "gradient_norm",
        "state_bytes",
        "workspace_bytes",
        "skipped",
    ]
    assert (report["optimizer"], report["backend"]) == ("rode", backend)
    assert (report["steps"], report["steps_done"], report["skipped"]) == (2, 42, {})
    assert report["state_bytes"] == 4 * (24 * 16 + 2 + 2 * 19) + 2 * 8

    before, moved = 0.0, 0.0
    for p in problems.values():
        one = follow("rode", Problem(p.weight, p.grads[:1], p.seed)).weight
        before += np.sum(one**2)
        moved += np.sum((follow("rode", p).weight - one) ** 2)
    grads = sum(np.sum(p.grads[1].astype(np.float64) ** 2) for p in problems.values())
    for key, square in (("weight_norm", before), ("update_norm", moved), ("gradient_norm", grads)):
        assert math.isclose(report[key], math.sqrt(square), rel_tol=1e-4), key
    assert math.isclose(report["update_ratio"], math.sqrt(moved / before), rel_tol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_split_matrix_has_diagnostics_a_block(rode, backend):
    options = {"splits": "*.qkv=8+4+12", "snr": True}
    problems = {"h.qkv": problem((24, 16), 4), "h.proj": problem((16, 24), 4)}
    output = rode.step("rode", tensors_of(problems), steps=4, options=options, backend=backend)
    for name, p in problems.items():
        trajectory = follow("rode", p, options, name=name)
        for key, expected in trajectory.rule.diag.items():
            actual = output[f"diag.{name}.{key}"].double().numpy()
            assert actual.shape == expected.shape == ((3,) if name == "h.qkv" else (1,))
            size = trajectory.last_grad_norm if key == "s" else np.abs(expected)
            assert np.all(np.abs(actual - expected) <= 1e-4 * size), key
    assert len(set(output["diag.h.qkv.rho"].tolist())) == 3


def test_splits_that_fit_nothing_are_refused_by_both_backends(rode):
    tensors = tensors_of({"w": problem((24, 16))})
    for splits in ("v=2", "w=5", "w=20+5"):
        for backend in BACKENDS:
            done, target = rode.try_step(
                "rode", tensors, options={"splits": splits}, backend=backend
            )
            assert done.returncode == FAILED and not target.exists()
            assert "splits" in done.stderr, (splits, backend)


@pytest.mark.parametrize(
    "key,value,dtype",
    [
        ("rounding", "stochastic", torch.bfloat16),
        ("rounding", "exact", torch.bfloat16),
        ("state_dtype", "bf16", torch.float32),
        ("ns_dtype", "bf16", torch.float32),
        ("ns_dtype", "fp16", torch.float32),
        ("ns_dtype", "fp8", torch.float32),
    ],
)
def test_the_reference_refuses_what_it_would_ignore(rode, key, value, dtype):
    tensors = {
        name: to_torch(value).to(dtype)
        for name, value in tensors_of({"w": problem((8, 6))}).items()
    }
    options = {key: value}
    done, target = rode.try_step("rode", tensors, options=options, backend="reference")
    assert done.returncode == FAILED and not target.exists()
    assert f"'{key}'" in done.stderr and f"'{value}'" in done.stderr and "cpu" in done.stderr
    if value != "fp16":  # which the CPU refuses as well
        assert rode.step("rode", tensors, options=options)


def test_rounding_of_fp32_weights_is_no_concern_of_the_reference(rode):
    tensors = tensors_of({"w": problem((8, 6))})
    rode.step("rode", tensors, options={"rounding": "exact"}, backend="reference")
