# SPDX-License-Identifier: Apache-2.0
"""Exit codes and messages: 0 done, 1 the work failed, 2 the command line was wrong."""

import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import oracles
from compare import assert_weight, follow
from harness import assert_same_bits, tensors_of
from problems import problem

FAILED, USAGE = 1, 2


def two_matrices(steps=1):
    return {"a.weight": problem((8, 6), steps, seed=1), "b.weight": problem((5, 7), steps, seed=2)}


def refused(done, code, *words):
    """One clear line on stderr, nothing on stdout, and never a crash."""
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, f"{word!r} missing in: {done.stderr}"


def refused_file(rode, tensors, *words, optimizer="rode", **kwargs):
    """Refused, the existing output file untouched, and no scratch file left behind."""
    source = rode.write(tensors)
    target = rode.scratch / "kept.safetensors"
    target.write_bytes(b"as it was")
    before = sorted(path.name for path in rode.scratch.iterdir())
    refused(rode.call(*rode.step_arguments(optimizer, source, target, **kwargs)), FAILED, *words)
    assert target.read_bytes() == b"as it was"
    assert sorted(path.name for path in rode.scratch.iterdir()) == before


def test_success_exits_zero_and_tells_only_that_the_input_has_no_checksum(rode):
    done, target = rode.try_step("rode", tensors_of(two_matrices()))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1 and "has no checksum" in done.stderr
    assert target.is_file()


def test_help_and_version_exit_zero(rode):
    for arguments in (
        ["--help"],
        ["step", "--help"],
        ["optimizers", "--help"],
        ["bench", "step", "--help"],
        ["--version"],
    ):
        done = rode.call(*arguments)
        assert done.returncode == 0 and done.stdout.strip(), arguments


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stepp"],
        ["step"],
        ["step", "--optimizer", "rode"],
        ["step", "--nonsense"],
        ["bench"],
        ["bench", "step"],
        ["bench", "step", "--shapes", "64by32", "--optimizer", "rode"],
        ["optimizers", "--shapes", "no-such-model"],
    ],
    ids=" ".join,
)
def test_wrong_command_lines_exit_two(rode, arguments):
    refused(rode.call(*arguments), USAGE, "error")


@pytest.mark.parametrize(
    "flag,value",
    [
        ("--steps", "0"),
        ("--steps", "-3"),
        ("--steps", "many"),
        ("--threads", "-1"),
        ("--backend", "gpu"),
        ("--route", "languages"),
    ],
)
def test_bad_flag_values_exit_two_and_name_the_value(rode, flag, value):
    source = rode.write(tensors_of(two_matrices()))
    target = rode.scratch / "out.safetensors"
    done = rode.call("step", "--optimizer", "rode", "--in", source, "--out", target, flag, value)
    refused(done, USAGE, value)
    assert not target.exists()


@pytest.mark.parametrize(
    "optimizer,near",
    [
        ("rodee", "rode"),
        ("muon-rsm", "muon-rms"),
        ("adamW", "adamw"),
        ("sopa", "soap"),
    ],
)
def test_unknown_optimizer_names_the_nearest(rode, optimizer, near):
    done, target = rode.try_step(optimizer, tensors_of(two_matrices()))
    refused(done, USAGE, f"'{optimizer}'", "did you mean", f"'{near}'")
    assert not target.exists()


@pytest.mark.parametrize(
    "optimizer,key,near",
    [
        ("rode", "lr_roh", "lr_rho"),
        ("rode", "reprojct", "reproject"),
        ("muon", "nesterof", "nesterov"),
        ("adamw", "weight_deacy", "weight_decay"),
        ("soap", "precondition_freqency", "precondition_frequency"),
        ("sgd", "momentun", "momentum"),
        ("rode", "LR", "lr"),
    ],
)
def test_unknown_option_names_the_nearest(rode, optimizer, key, near):
    done, target = rode.try_step(optimizer, tensors_of(two_matrices()), options={key: "1"})
    refused(done, USAGE, f"'{key}'", "did you mean", f"'{near}'")
    assert not target.exists()


@pytest.mark.parametrize(
    "optimizer,key,value",
    [
        ("rode", "lr", "fast"),
        ("rode", "lr", "-1"),
        ("rode", "lr", "nan"),
        ("rode", "lr", "inf"),
        ("rode", "lr", ""),
        ("rode", "lr", "1e-3x"),
        ("rode", "momentum", "1"),
        ("rode", "momentum", "-0.1"),
        ("rode", "ns_steps", "2.5"),
        ("rode", "ns_steps", "-1"),
        ("rode", "nesterov", "yes"),
        ("rode", "reproject", "sometimes"),
        ("rode", "radius", "learn"),
        ("rode", "floor", "-1"),
        ("rode", "snr_min", "2"),
        ("muon", "scale", "big"),
        ("muon", "constraint", "ball"),
        ("muon", "coefficients", "jordon"),
        ("muon", "splits", "w"),
        ("muon", "splits", "w=0"),
        ("adamw", "betas", "0.9"),
        ("adamw", "betas", "0.9,1.0"),
        ("adamw", "betas", "0.9,0.95,0.99"),
        ("ademamix", "betas", "0.9,0.999"),
        ("ademamix", "warmup_steps", "-5"),
        ("soap", "precondition_frequency", "0"),
        ("adafactor", "clip_threshold", "0"),
        ("sgd", "weight_decay", "-1"),
        ("adamw", "rounding", "up"),
        ("adamw", "state_dtype", "fp8"),
    ],
)
def test_bad_option_values_are_named(rode, optimizer, key, value):
    done, target = rode.try_step(optimizer, tensors_of(two_matrices()), options={key: value})
    refused(done, USAGE, key)
    assert not target.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"coefficients": "polar_express", "reproject": "every"},
        {"coefficients": "you", "reproject": "every"},
        {"coefficients": "four", "reproject": "every"},
        {"ns_form": "gram"},
    ],
    ids=str,
)
def test_rode_refuses_combinations_that_diverge_or_are_not_exact(rode, options):
    done, _ = rode.try_step("rode", tensors_of(two_matrices()), options=options)
    refused(done, USAGE, "reproject")


@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m"])
def test_four_takes_no_other_number_of_steps(rode, optimizer):
    options = {"coefficients": "four", "ns_steps": "5"}
    done, _ = rode.try_step(optimizer, tensors_of(two_matrices()), options=options)
    refused(done, USAGE, "'ns_steps' = 5", "ns_steps=4")
    # In either order, and unset.
    for given in ({"ns_steps": "4", "coefficients": "four"}, {"coefficients": "four"}):
        rode.step(optimizer, tensors_of(two_matrices()), options=given)


def test_a_set_without_equals_sign_is_wrong_usage(rode):
    source = rode.write(tensors_of(two_matrices()))
    arguments = rode.step_arguments("rode", source, rode.scratch / "out.safetensors")
    done = rode.call(*arguments, "--set", "lr")
    refused(done, USAGE, "'lr'")


def test_missing_gradient(rode):
    tensors = tensors_of(two_matrices())
    del tensors["grad.b.weight"]
    refused_file(rode, tensors, "b.weight", "gradient")


def test_missing_gradient_of_a_later_step(rode):
    tensors = tensors_of(two_matrices(3))
    del tensors["grad@2.b.weight"]
    refused_file(rode, tensors, "b.weight", "2", steps=3)


@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_gradient_is_refused_and_named(rode, optimizer, value):
    problems = two_matrices()
    problems["b.weight"].grads[0][4, 6] = value
    refused_file(rode, tensors_of(problems), "b.weight", optimizer=optimizer)


def test_non_finite_gradient_in_a_later_step_leaves_the_output_alone(rode):
    problems = two_matrices(3)
    problems["b.weight"].grads[2][0, 0] = np.nan
    for backend in ("cpu", "reference"):
        refused_file(rode, tensors_of(problems), "b.weight", steps=3, backend=backend)


def test_gradient_for_every_step_and_by_step_is_refused(rode):
    tensors = tensors_of(two_matrices())
    tensors["grad@0.b.weight"] = tensors["grad.b.weight"]
    refused_file(rode, tensors, "b.weight", "both")


def test_shape_mismatch_names_parameter_and_shapes(rode):
    tensors = tensors_of(two_matrices())
    tensors["grad.b.weight"] = np.zeros((7, 5), np.float32)
    refused_file(rode, tensors, "b.weight", "7", "5")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
@pytest.mark.parametrize("which", ["param", "grad"])
def test_wrong_dtype_is_named(rode, which, dtype):
    tensors = tensors_of(two_matrices())
    key = f"{which}.b.weight"
    tensors[key] = torch.from_numpy(tensors[key]).to(dtype)
    refused_file(rode, tensors, "b.weight", "F32")


@pytest.mark.parametrize(
    "name,value,words",
    [
        ("state.b.weight.momentum", np.zeros((7, 5), np.float32), ["momentum"]),
        ("state.b.weight.exp_avg_fast", np.zeros((5, 7), np.float32), ["exp_avg_fast"]),
        ("state.c.weight.momentum", np.zeros((5, 7), np.float32), ["c.weight"]),
        ("grad.c.weight", np.zeros((5, 7), np.float32), ["c.weight"]),
        ("weight.b", np.zeros((5, 7), np.float32), ["weight.b"]),
        ("grad@x.b.weight", np.zeros((5, 7), np.float32), ["grad@x.b.weight"]),
    ],
)
def test_tensors_that_do_not_belong_are_refused(rode, name, value, words):
    refused_file(rode, {**tensors_of(two_matrices()), name: value}, *words)


def test_an_input_without_parameters_is_refused(rode):
    refused_file(rode, {"grad.w": np.zeros((2, 2), np.float32)}, "param")


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "truncated", "huge header", "not json", "overlap"]
)
def test_damaged_files_are_refused(rode, damage):
    path = rode.write(tensors_of(two_matrices()), "damaged.safetensors")
    whole = path.read_bytes()
    header = {
        "huge header": b"\xff" * 7 + b"\x7f" + whole[8:],
        "not json": struct.pack("<Q", 16) + b"this is not json" + b"\0" * 64,
        "overlap": _with_header(
            b'{"param.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"grad.w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
            12,
        ),
        "truncated": whole[:-5],
        "empty": b"",
        "missing": None,
    }[damage]
    path.unlink() if header is None else path.write_bytes(header)
    target = rode.scratch / "out.safetensors"
    refused(rode.call(*rode.step_arguments("rode", path, target)), FAILED, "damaged.safetensors")
    assert not target.exists()


def _with_header(text, size):
    return struct.pack("<Q", len(text)) + text + b"\0" * size


def test_output_in_a_missing_folder_is_refused(rode):
    source = rode.write(tensors_of(two_matrices()))
    target = rode.scratch / "no" / "such" / "folder.safetensors"
    refused(rode.call(*rode.step_arguments("rode", source, target)), FAILED, "folder.safetensors")


def test_output_may_replace_the_input(rode):
    tensors = tensors_of(two_matrices())
    apart = rode.step("rode", tensors)
    path = rode.write(tensors, "both.safetensors")
    assert rode.call(*rode.step_arguments("rode", path, path)).returncode == 0
    assert_same_bits(apart, load_file(str(path)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_zero_matrix_is_held_and_said_once(rode, backend):
    problems = two_matrices(3)
    problems["b.weight"].weight[:] = 0
    hold = {"on_zero": "hold"}
    done, target = rode.try_step(
        "rode", tensors_of(problems), steps=3, backend=backend, options=hold
    )
    assert done.returncode == 0, done.stderr
    output = load_file(str(target))
    assert not output["param.b.weight"].any()
    for name, p in problems.items():
        trajectory = follow("rode", p, hold)
        assert_weight(output[f"param.{name}"], trajectory)
        momentum = output[f"state.{name}.momentum"].double().numpy()
        assert np.allclose(momentum, trajectory.state["momentum"], rtol=1e-5, atol=1e-6)
    if backend == "cpu":  # the reference is the tests' oracle and says nothing
        assert done.stderr.count("b.weight") == 1 and "a.weight" not in done.stderr


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_matrix_that_begins_at_zero_is_the_rests_and_stays_so(rode, backend):
    problems = two_matrices(6)
    problems["b.weight"].weight[:] = 0
    tensors = tensors_of(problems)
    whole = rode.step("rode", tensors, steps=6, backend=backend)
    for name, p in problems.items():
        assert_weight(whole[f"param.{name}"], follow("rode", p))
    assert np.abs(whole["param.b.weight"].numpy()).max() > 1e-3
    assert "state.b.weight.exp_avg" in whole and "state.b.weight.momentum" not in whole
    # The weights are no longer zero; the state tells where they began.
    first = rode.step("rode", tensors, steps=5, backend=backend)
    resumed = {k: v for k, v in first.items() if not k.startswith("diag.")}
    for name, p in problems.items():
        resumed[f"grad.{name}"] = p.grads[5]
    done, target = rode.try_step("rode", resumed, backend=backend, extra=["--show-routing"])
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "b.weight" in line)
    assert " rest " in row and "zero start" in row
    again = load_file(str(target))
    assert again.keys() == whole.keys()
    if backend == "cpu":  # the reference rounds to fp32 when it writes
        assert_same_bits(again, whole, [k for k in whole if not k.startswith("diag.")])


def test_a_zero_gradient_moves_nothing_in_rode(rode):
    problems = two_matrices()
    problems["b.weight"].grads[0][:] = 0
    output = rode.step("rode", tensors_of(problems))
    assert_weight(output["param.b.weight"], follow("rode", problems["b.weight"]))
    assert float(output["diag.b.weight.theta"]) == 0
    assert all(torch.isfinite(tensor).all() for tensor in output.values())
