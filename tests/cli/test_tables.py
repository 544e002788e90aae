# SPDX-License-Identifier: Apache-2.0
"""`rode optimizers` and `rode bench step`: defaults, published state sizes, JSON keys."""

import json

import pytest

import oracles

STORAGE = {"rounding": "stochastic", "state_dtype": "fp32"}
NEWTON_SCHULZ = {"ns_dtype", "ns_form"}

# MB of 10^6 bytes in the paper's systems table.
PUBLISHED = {
    "qwen2-114m": {
        "adamw": 913.0,
        "muon": 611.0,
        "soap": 2643.2,
        "mars-m": 913.0,
        "ademamix": 1369.6,
        "rode": 611.0,
    },
    "resnet50": {
        "adamw": 204.5,
        "muon": 102.4,
        "soap": 630.3,
        "mars-m": 204.5,
        "ademamix": 306.7,
        "rode": 102.4,
    },
}
FLOAT = 4  # bytes
SCALARS = 8 * 512  # one-element entries: at most a few a tensor


def qwen2_114m():
    width, kv, hidden = 768, 256, 2048
    matrices = 12 * [
        (width, width),
        (width, width),
        (kv, width),
        (kv, width),
        (hidden, width),
        (hidden, width),
        (width, hidden),
    ]
    rest = [(50257, width), (width,)] + 12 * [(width,), (kv,), (kv,), (width,), (width,)]
    return matrices, rest


def resnet50():
    matrices, rest = [(64, 3, 7, 7), (1000, 2048)], [(64,), (64,), (1000,)]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolutions = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, inputs, 1, 1))
            matrices += convolutions
            rest += [(shape[0],) for shape in convolutions for _ in range(2)]
            inputs = 4 * width
    return matrices, rest


MODELS = {"qwen2-114m": qwen2_114m, "resnet50": resnet50}


def count(shapes):
    total = 0
    for shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return total


def tensor_bytes(optimizer, matrices, rest):
    """Bytes of the state tensors, from the shapes alone."""
    managed, delegated = count(matrices), count(rest)
    buffers = {
        "rode": 1,
        "rode-snr": 1,
        "rode-fixed": 1,
        "rode-paper": 1,
        "muon": 1,
        "muon-rms": 1,
        "muon-normproj": 1,
        "muown": 1,
        "soap": 2,
        "mars-m": 2,
        "ademamix": 3,
        "adamw": 2,
        "lion": 1,
        "sgd": 1,
    }
    if optimizer == "adafactor":
        rows = sum(count([shape[:-1]]) + count([shape[:-2] + shape[-1:]]) for shape in matrices)
        factored = [shape for shape in rest if len(shape) > 1]
        rows += sum(count([shape[:-1]]) + count([shape[:-2] + shape[-1:]]) for shape in factored)
        return FLOAT * (rows + count([shape for shape in rest if len(shape) < 2]))
    same = buffers[optimizer] if optimizer in oracles.SAME_RULE else 2
    total = buffers[optimizer] * managed + same * delegated
    if optimizer == "muown":  # four numbers per row
        total += 4 * sum(shape[0] for shape in matrices)
    if optimizer == "soap":
        total += 2 * sum(extent * extent for shape in matrices for extent in shape)
    return FLOAT * total


def listed(rode, *arguments):
    done = rode.call("optimizers", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return {entry["name"]: entry for entry in json.loads(done.stdout)["optimizers"]}


def defaults_of(entry):
    options = entry["options"]
    if isinstance(options, dict):
        return options
    return {option["key"]: option["default"] for option in options}


def same_value(actual, expected):
    if isinstance(expected, bool) or isinstance(expected, str):
        return actual == expected
    if isinstance(expected, tuple):
        return isinstance(actual, list) and [float(x) for x in actual] == list(expected)
    return not isinstance(actual, (bool, str)) and float(actual) == float(expected)


def test_every_optimizer_is_listed(rode):
    assert set(listed(rode)) == set(oracles.DEFAULTS)


@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
def test_defaults_are_the_documented_ones(rode, optimizer):
    found = defaults_of(listed(rode)[optimizer])
    for key, expected in oracles.DEFAULTS[optimizer].items():
        assert key in found, f"{optimizer} does not list {key}"
        if expected is None:  # follows `lr` or `weight_decay`
            expected = oracles.DEFAULTS[optimizer][key.removesuffix("_rest")]
        assert same_value(found[key], expected), f"{key}: {found[key]!r} for {expected!r}"
    for key, expected in STORAGE.items():
        assert found[key] == expected
    if "ns_steps" in oracles.DEFAULTS[optimizer]:
        assert NEWTON_SCHULZ <= set(found)
        assert found["ns_form"] == "auto"


@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
def test_listed_keys_can_be_set_to_their_defaults(rode, optimizer):
    """Whatever the list prints is accepted back, and changes nothing."""
    from harness import assert_same_bits, tensors_of
    from problems import problem

    tensors = tensors_of({"w": problem((12, 8)), "b": problem((5,))})
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in defaults_of(listed(rode)[optimizer]).items()
        if value not in (None, "")
    }
    assert_same_bits(rode.step(optimizer, tensors), rode.step(optimizer, tensors, options=options))


def test_the_table_for_people_names_every_optimizer(rode):
    done = rode.call("optimizers")
    assert done.returncode == 0
    for optimizer in oracles.DEFAULTS:
        assert optimizer in done.stdout


@pytest.mark.parametrize("model", list(PUBLISHED))
def test_state_bytes_are_the_published_ones(rode, model):
    entries = listed(rode, "--shapes", model)
    for optimizer, megabytes in PUBLISHED[model].items():
        tensors = tensor_bytes(optimizer, *MODELS[model]())
        assert round(tensors / 1e6, 1) == megabytes, f"{optimizer}: the test's own shapes"
        extra = entries[optimizer]["state_bytes"] - tensors
        assert 0 <= extra <= SCALARS, f"{optimizer}: {extra} bytes beside {tensors}"


@pytest.mark.parametrize("model", list(MODELS))
def test_state_bytes_of_every_optimizer(rode, model):
    for optimizer, entry in listed(rode, "--shapes", model).items():
        extra = entry["state_bytes"] - tensor_bytes(optimizer, *MODELS[model]())
        assert 0 <= extra <= SCALARS, f"{optimizer}: {extra} bytes"


@pytest.mark.parametrize("model,parameters", [("gpt2", 84934656 + 39505152), ("qwen2-1.5b", None)])
def test_other_models_are_known(rode, model, parameters):
    entries = listed(rode, "--shapes", model)
    if parameters:
        assert 0 <= entries["adamw"]["state_bytes"] - 8 * parameters <= SCALARS
    assert entries["rode"]["state_bytes"] < entries["adamw"]["state_bytes"]


@pytest.mark.parametrize("optimizer", ["rode", "muon", "adamw", "soap"])
def test_bench_step_reports_its_keys(rode, optimizer):
    done = rode.call(
        "bench",
        "step",
        "--shapes",
        "64x32x4,32x32x2",
        "--optimizer",
        optimizer,
        "--threads",
        "2",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for key in (
        "shapes",
        "optimizer",
        "backend",
        "threads",
        "median_ms",
        "spread_ms",
        "state_bytes",
        "workspace_bytes",
        "blas_share",
    ):
        assert key in report, key
    assert (report["optimizer"], report["threads"], report["backend"]) == (optimizer, 2, "cpu")
    assert report["median_ms"] > 0 and report["spread_ms"] >= 0
    matrices = 4 * [(64, 32)] + 2 * [(32, 32)]
    assert 0 <= report["state_bytes"] - tensor_bytes(optimizer, matrices, []) <= SCALARS
    if optimizer in ("rode", "muon"):
        assert report["blas_share"] > 0


def test_own_shapes_may_leave_out_the_count(rode):
    one = listed(rode, "--shapes", "64x32")["rode"]["state_bytes"]
    assert 0 <= one - FLOAT * 64 * 32 <= SCALARS
