# SPDX-License-Identifier: Apache-2.0
"""The lab's models against transformers, torchvision and a plain restatement, on equal weights.

Logits, loss and every gradient in fp32. The program that runs our side, rode_lab_model_check, is
the one beside RODE_BIN, or RODE_MODEL_CHECK; without it, or without the other library, a test is
skipped with the reason.
"""

import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import resnet_plain

# Of the largest element of a tensor; the order of the sums differs between the two.
TOLERANCE = 1e-4
GPT2 = {
    "kind": "gpt2",
    "layers": 3,
    "width": 48,
    "heads": 4,
    "vocab_size": 97,
    "positions": 40,
    "mlp_width": 112,
}
QWEN2 = {
    "kind": "qwen2",
    "layers": 3,
    "width": 48,
    "heads": 6,
    "kv_heads": 2,
    "vocab_size": 97,
    "mlp_width": 104,
    "rope_base": 10000.0,
}


@pytest.fixture(scope="session")
def program():
    beside = pathlib.Path(os.environ.get("RODE_BIN", "build/ci/bin/rode")).parent
    path = pathlib.Path(os.environ.get("RODE_MODEL_CHECK", beside / "rode_lab_model_check"))
    if not path.is_file():
        pytest.skip(f"no program at {path}: built with RODE_WITH_TORCH and RODE_WITH_LAB")
    return path.resolve()


def task(model):
    """A task file around a [model] table."""
    language = "vocab_size" in model
    data = {"kind": "tiny-lm" if language else "tiny-vision", "train_samples": 1}
    data |= {"eval_samples": 1} | ({"sequence": 8} if language else {})
    train = {"steps": 1, "batch": 1, "eval_interval": 1}
    train["routing"] = "language" if language else "vision"
    sections = {"model": model, "data": data, "train": train}
    sections["optimizers.sgd"] = {"lr": 0.1, "source": "test"}
    text = 'title = "check"\n'
    for name, table in sections.items():
        text += f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())
    return text


class Ours:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, model, weights, inputs, targets, train=False, checkpoint=False, double=False):
        metadata = {
            "task": task(model),
            "train": str(train).lower(),
            "checkpoint": str(checkpoint).lower(),
            "double": str(double).lower(),
        }
        files.save_file(weights, self.folder / "weights.safetensors")
        files.save_file(
            {"input": inputs, "target": targets}, self.folder / "input.safetensors", metadata
        )
        names = ["weights.safetensors", "input.safetensors", "output.safetensors", "saved"]
        done = subprocess.run(
            [self.program, *(self.folder / name for name in names)],
            capture_output=True,
            check=False,
            text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        )
        assert done.returncode == 0, done.stderr
        return files.load_file(self.folder / "output.safetensors")

    @property
    def saved(self):
        """What from_pretrained opens."""
        return self.folder / "saved"


@pytest.fixture
def ours(program, tmp_path):
    return Ours(program, tmp_path)


def assert_close(name, found, expected):
    assert found.shape == expected.shape, name
    scale = expected.abs().max().item()
    error = (found - expected).abs().max().item()
    assert scale > 0 and error <= TOLERANCE * scale, f"{name}: {error:g} of {scale:g}"


def assert_same(found, logits, loss, module):
    assert_close("logits", found["logits"], logits)
    assert_close("loss", found["loss"], loss)
    named = dict(module.named_parameters())
    ours = {k.removeprefix("grad.") for k in found if k.startswith("grad.")}
    assert ours == set(named)
    for name, parameter in named.items():
        assert_close(name, found[f"grad.{name}"], parameter.grad)


def tokens(model, seed):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(model["vocab_size"], (3, 34), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def transformers_model(transformers, model, tied):
    """Its own class with random weights of its own; biases and norms are given some, too."""
    common = {"vocab_size": model["vocab_size"], "tie_word_embeddings": tied}
    common |= {"initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None}
    torch.manual_seed(3)
    if model["kind"] == "gpt2":
        config = transformers.GPT2Config(
            n_positions=model["positions"],
            n_embd=model["width"],
            n_layer=model["layers"],
            n_head=model["heads"],
            n_inner=model["mlp_width"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
        theirs = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.Qwen2Config(
            hidden_size=model["width"],
            intermediate_size=model["mlp_width"],
            num_hidden_layers=model["layers"],
            num_attention_heads=model["heads"],
            num_key_value_heads=model["kv_heads"],
            max_position_embeddings=64,
            **common,
        )
        theirs = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return theirs.float().eval()


def weights_of(theirs):
    """As save_pretrained writes them: tensors that are one are written once."""
    out, seen = {}, set()
    for name, value in theirs.state_dict().items():
        if value.data_ptr() not in seen:
            out[name] = value.contiguous()
        seen.add(value.data_ptr())
    return out


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("model", [GPT2, QWEN2], ids=["gpt2", "qwen2"])
def test_decoders_are_those_of_transformers(ours, model, checkpoint, tied):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers_model(transformers, model, tied)
    inputs, targets = tokens(model, 5)
    logits = theirs(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    settings = model | {"tied": tied}
    found = ours.run(settings, weights_of(theirs), inputs, targets, True, checkpoint)
    assert_same(found, logits.detach(), loss.detach(), theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model", [GPT2, QWEN2], ids=["gpt2", "qwen2"])
def test_saved_models_open_in_transformers(ours, model, tied):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers_model(transformers, model, tied)
    inputs, targets = tokens(model, 6)
    found = ours.run(model | {"tied": tied}, weights_of(theirs), inputs, targets)
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(
        ours.saved, output_loading_info=True, torch_dtype=torch.float32
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert_close("logits", found["logits"], opened.eval()(inputs).logits)
    for name, value in theirs.state_dict().items():
        assert torch.equal(opened.state_dict()[name], value), name


def test_a_file_that_transformers_writes_is_read(ours, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for model in (GPT2, QWEN2):
        theirs = transformers_model(transformers, model, True)
        theirs.save_pretrained(tmp_path / model["kind"])
        written = files.load_file(tmp_path / model["kind"] / "model.safetensors")
        inputs, targets = tokens(model, 7)
        found = ours.run(model, written, inputs, targets)
        with torch.no_grad():
            assert_close("logits", found["logits"], theirs(inputs).logits)
        # And ours has the same tensors, under the same names.
        saved = files.load_file(ours.saved / "model.safetensors")
        assert saved.keys() == written.keys()
        assert all(torch.equal(saved[name], written[name]) for name in saved)


def compare_images(ours, model, theirs, size):
    """Logits in evaluation; loss, gradients and statistics of one step of training."""
    torch.manual_seed(4)
    for name, buffer in theirs.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.2)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    images = torch.randn(4, 3, size, size)
    labels = torch.randint(model["classes"], (4,))
    weights = {name: value.clone() for name, value in theirs.state_dict().items()}
    # In double: through BatchNorm over four images and some fifty ReLUs the rounding of fp32, which
    # depends on the number of threads, grows to thousandths of the first layers' gradients.
    theirs.double()
    with torch.no_grad():
        logits = theirs.eval()(images.double())
    loss = torch.nn.functional.cross_entropy(theirs.train()(images.double()), labels)
    loss.backward()
    found = ours.run(model, weights, images, labels, train=True, double=True)
    assert_same(found, logits, loss.detach(), theirs)
    for name, buffer in theirs.named_buffers():
        assert_close(name, found[name], buffer)
    saved = files.load_file(ours.saved / "model.safetensors")
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in saved)


@pytest.mark.parametrize("classes", [100, 1000])
def test_resnet50_is_torchvisions(ours, classes):
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # its operators need torch's own build
        pytest.skip(f"torchvision is not usable: {error}")
    torch.manual_seed(3)
    theirs = torchvision.models.resnet50(num_classes=classes)
    compare_images(ours, {"kind": "resnet50", "classes": classes}, theirs, 64)


def test_resnet50_is_its_plain_restatement(ours):
    torch.manual_seed(3)
    theirs = resnet_plain.resnet50(100)
    compare_images(ours, {"kind": "resnet50", "classes": 100}, theirs, 64)


@pytest.mark.parametrize("layers", [3, 5, 6])
def test_small_resnet_is_its_plain_restatement(ours, layers):
    torch.manual_seed(3)
    theirs = resnet_plain.small_resnet(12, 8, layers)
    settings = {"kind": "small-resnet", "classes": 12, "width": 8, "layers": layers}
    compare_images(ours, settings, theirs, 32)
