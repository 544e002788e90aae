# SPDX-License-Identifier: Apache-2.0
"""The parts of fine-tuning: the paper's rates, data and split, encoding, memory, rounding."""

import json
import lzma
import math

import pytest
import tiny_lm
import torch

from rode._command import BadUsage, Failed
from rode.finetune import checkpoint, data, encode, loop, memory, protocol, rounding

# Table of the paper's appendix: selected rates of matrices, of the radius, of the rest.
RATES = {
    "adamw": (2.402e-5, None, 2.402e-5),
    "muon": (2.869e-4, None, 5.846e-6),
    "muon-rms": (1.971e-5, None, 2e-5),
    "adafactor": (8e-6, None, 8e-6),
    "soap": (2.118e-5, None, 3.020e-6),
    "rode": (6.259e-6, 2.919e-6, 5.592e-6),
}


def options(name, *changes, rounding="nearest", published=False):
    return protocol.options_of(name, list(changes), rounding, 0, published)


def test_the_presets_are_the_papers_and_decay_nothing():
    assert list(protocol.presets()) == list(RATES)
    for name, (lr, lr_rho, lr_rest) in RATES.items():
        chosen = options(name)
        assert (chosen["lr"], chosen.get("lr_rho"), chosen["lr_rest"]) == (lr, lr_rho, lr_rest)
        assert chosen["weight_decay_rest"] == 0 and chosen.get("weight_decay", 0) == 0
        for key, (low, high) in protocol.presets()[name].search.items():
            assert low <= chosen[key] <= high
    soap = options("soap")
    assert soap["betas"] == (0.9, 0.95)
    assert (soap["precondition_frequency"], soap["max_precond_dim"]) == (100, 1024)
    assert options("rode")["reproject"] == "guarded"
    published = options("rode", published=True)
    assert {k for k, v in published.items() if v != options("rode")[k]} == {"reproject"}
    assert published["reproject"] == "every"


def test_changes_of_options_are_checked_before_anything_is_loaded():
    assert options("rode", "lr=1e-3", "betas_rest=0.8,0.9")["betas_rest"] == (0.8, 0.9)
    one_rate = options("adamw", "lr=1e-3")
    assert one_rate["lr_rest"] == 1e-3
    assert options("adamw", "lr=1e-3", "lr_rest=0.5")["lr_rest"] == 0.5
    for changes, said in (
        (["momentm=0.5"], "momentum"),
        (["lr=1e-3", "lr=2e-3"], "twice"),
        (["lr=fast"], "number"),
        (["lr"], "key=value"),
        (["lr=-1"], "lr"),
        (["reproject=sometimes"], "reproject"),
    ):
        with pytest.raises(BadUsage, match=said):
            options("rode", *changes)
    with pytest.raises(BadUsage, match="muon-rms"):
        options("muon_rms")


def test_the_schedule_warms_up_and_ends_near_zero():
    warmup = protocol.warmup_steps(3000, 0.03)
    assert warmup == 90
    factors = [protocol.multiplier(t, 3000, warmup) for t in range(3000)]
    assert factors[0] == 1 / 90 and factors[89] == factors[90] == 1.0
    assert factors[(3000 + 90) // 2] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-6
    assert all(a >= b for a, b in zip(factors[90:], factors[91:]))


def test_every_rate_follows_the_schedule():
    layer = torch.nn.Linear(4, 4)
    optimizer = protocol.make_optimizer("rode", protocol.groups_of(layer), options("rode"))
    protocol.set_rates(optimizer, 0.5)
    rates = {group["rule"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"matrix": 0.5 * 6.259e-6, "rest": 0.5 * 5.592e-6}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "line 3 is not JSON"),
        ("[1, 2]", "line 3 is a list"),
        ('{"question": "q"}', "line 3: field 'answer'"),
        ('{"question": "q", "answer": 5}', "line 3: field 'answer'"),
    ],
)
def test_malformed_lines_are_named_by_number(tmp_path, line, said):
    good = json.dumps({"question": "q", "answer": "a"})
    path = tmp_path / "data.jsonl"
    path.write_text(f"{good}\n\n{line}\n{good}\n", "utf-8")
    with pytest.raises(Failed, match=said):
        data.examples_of(path, "question", "answer")


def test_a_truncated_archive_is_an_error(tmp_path):
    path = tmp_path / "data.jsonl.xz"
    whole = lzma.compress(b'{"question": "q", "answer": "a"}\n' * 1000)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Failed, match="cannot be read"):
        data.examples_of(path, "question", "answer")


def test_the_split_is_made_once_and_guarded_by_its_digest(tmp_path):
    rows = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(7473)]
    source = tiny_lm.write_lines(tmp_path / "train.jsonl", rows)
    arguments = (source, "question", "answer", 374)
    made = data.split_of(tmp_path / "split", *arguments)
    assert (len(made.train), len(made.validation)) == (7099, 374)
    assert not {e.prompt for e in made.train} & {e.prompt for e in made.validation}
    assert data.split_of(tmp_path / "split", *arguments) == made
    assert data.split_of(tmp_path / "other", *arguments).digest == made.digest
    with pytest.raises(Failed, match="validation = 374, now it is 10"):
        data.split_of(tmp_path / "split", source, "question", "answer", 10)
    stored = tmp_path / "split" / "validation.jsonl"
    stored.write_text(stored.read_text("utf-8").replace("a1", "b1"), "utf-8")
    with pytest.raises(Failed, match="edited"):
        data.split_of(tmp_path / "split", *arguments)


def test_only_answers_are_counted_in_both_formats(tmp_path):
    tokenizer = tiny_lm.tokenizer(tmp_path)
    example = data.Example("2+2?", "#### 4")
    for form, prompt in (("chat", "<user>2+2?<assistant>"), ("plain", "Question: 2+2?\nAnswer:")):
        row = encode.encoded(tokenizer, form, example)
        assert tokenizer.decode(row.tokens[: row.prompt]) == prompt
        assert tokenizer.decode(row.tokens[row.prompt :]).strip() == "#### 4<end>"
        batch = encode.batch_of([row], tokenizer.pad_token_id, torch.device("cpu"))
        assert (batch["labels"] == encode.IGNORED).sum() == row.prompt
    assert encode.chosen_format(tokenizer, "auto") == "chat"
    with pytest.raises(Failed, match="prompt of 6 tokens"):
        encode.encoded_all(tokenizer, "chat", [example], 6, "training")


def test_a_tokenizer_that_cannot_write_answers_is_refused(tmp_path):
    no_digits = [sign for sign in tiny_lm.SIGNS if not sign.isdigit()]
    cases = [
        (tiny_lm.tokenizer(tmp_path / "a", signs=no_digits), 200, "no tokens for parts"),
        (tiny_lm.tokenizer(tmp_path / "b", end=None), 200, "no end-of-sequence token"),
        (tiny_lm.tokenizer(tmp_path / "c"), 50, "embedding has 50 rows"),
    ]
    for tokenizer, vocabulary, said in cases:
        with pytest.raises(Failed, match=said):
            encode.check_tokenizer(tokenizer, vocabulary)
    plain = tiny_lm.tokenizer(tmp_path / "d", template=None)
    assert encode.chosen_format(plain, "auto") == "plain"
    with pytest.raises(Failed, match="chat template"):
        encode.chosen_format(plain, "chat")


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_the_loss_is_transformers_own_and_ignores_padding(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    if family == "qwen3_5" and not hasattr(transformers, "Qwen3_5TextConfig"):
        pytest.skip("this transformers has no Qwen3.5")
    tokenizer = tiny_lm.tokenizer(tmp_path)
    model = tiny_lm.model(tmp_path, family)
    rows = [
        encode.encoded(tokenizer, "chat", data.Example(row["question"], row["answer"]))
        for row in tiny_lm.questions(3)
    ]
    rows[1] = encode.Encoded(rows[1].tokens[:-9], rows[1].prompt)
    device, pad = torch.device("cpu"), tokenizer.pad_token_id
    own = [loop.loss_sum(model, [row], pad, device).item() for row in rows]
    for row, loss in zip(rows, own):
        mean = model(**encode.batch_of([row], pad, device)).loss.item()
        assert loss == pytest.approx(mean * loop.answer_tokens([row]), rel=1e-5)
    together = loop.loss_sum(model, rows, pad, device).item()
    assert together == pytest.approx(sum(own), rel=1e-5)
    mean = loop.validation_loss(model, rows, 2, pad, device)
    assert mean == pytest.approx(sum(own) / loop.answer_tokens(rows), rel=1e-5)


def test_examples_come_in_an_order_of_the_seed_and_every_one_per_epoch():
    rows = [encode.Encoded([i], 0) for i in range(7)]
    drawn = loop.samples(rows, 3, 0, 21)
    for epoch in range(3):
        assert sorted(row.tokens[0] for row in drawn[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert drawn[:7] != drawn[7:14]
    assert loop.samples(rows, 3, 5, 6) == drawn[5:11]
    assert loop.samples(rows, 4, 0, 7) != drawn[:7]


@pytest.mark.parametrize("name", list(RATES))
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_planned_state_is_what_the_optimizer_has(tmp_path, name, dtype):
    model = tiny_lm.model(tmp_path).to(checkpoint.DTYPES[dtype])
    chosen = options(name, rounding="exact")
    optimizer = protocol.make_optimizer(name, protocol.groups_of(model), chosen)
    state = sum(t.numel() * t.dtype.itemsize for t in optimizer.named_state().values())
    config = checkpoint.load_config(tmp_path)
    empty = checkpoint.empty_model(config, checkpoint.DTYPES[dtype])
    assert all(p.device.type == "meta" for p in empty.parameters())
    kinds = memory.plan(name, chosen, empty, config, 96, True, False)
    assert kinds["optimizer state"] == state
    assert kinds["weights"] == sum(p.numel() * p.dtype.itemsize for p in model.parameters())
    with pytest.raises(Failed, match="optimizer state"):
        memory.check_fits(kinds, sum(kinds.values()) - 1)
    memory.check_fits(kinds, sum(kinds.values()))


def test_everything_of_two_dimensions_is_a_matrix_and_nothing_else(tmp_path):
    model = tiny_lm.model(tmp_path)
    groups = {group["rule"]: group["params"] for group in protocol.groups_of(model)}
    assert all(p.dim() == 2 for _, p in groups["matrix"])
    assert all(p.dim() != 2 for _, p in groups["rest"])
    names = {name for name, _ in groups["matrix"]}
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= names


def test_a_checkpoint_with_a_vision_part_gives_its_language_model(tmp_path):
    """As Qwen3.5-9B is published: names differ, and the vision part is left out."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Qwen3_5Config"):
        pytest.skip("this transformers has no Qwen3.5")
    text = tiny_lm.model(tmp_path / "text", "qwen3_5").config.to_dict()
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2}
    vision |= {"out_hidden_size": 48, "num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision)
    whole = transformers.Qwen3_5ForConditionalGeneration(config)
    whole.save_pretrained(str(tmp_path))
    config = checkpoint.load_config(tmp_path)
    assert config.get_text_config().vocab_size == 112
    loaded = checkpoint.load_model(tmp_path, torch.float32, torch.device("cpu"))
    weights = {name: list(p.shape) for name, p in loaded.named_parameters()}
    empty = checkpoint.empty_model(config, torch.float32)
    assert weights == {name: list(p.shape) for name, p in empty.named_parameters()}
    source = whole.state_dict()
    for name, p in loaded.named_parameters():
        assert torch.equal(p, source[name.replace("model.", "model.language_model.", 1)]), name


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    model = tiny_lm.model(tmp_path, "qwen3")
    state = {k: v for k, v in model.state_dict().items() if "layers.1.mlp.up_proj" not in k}
    model.save_pretrained(str(tmp_path), state_dict=state)
    checkpoint.check_files(tmp_path)
    with pytest.raises(Failed, match="1 weights of the model are not in"):
        checkpoint.load_model(tmp_path, torch.float32, torch.device("cpu"))


def test_lost_updates_are_counted():
    """AdamW's first step is lr in size everywhere: lost where half a unit in the last place of a
    bf16 weight, 2^-8 of it to 2^-9, is more."""
    layer = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(2.0**-8)
    before = [p.clone() for p in layer.parameters()]
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    shares = rounding.lost_updates("adamw", options("adamw", "lr=1e-3"), layer)
    assert (shares["matrix"], shares["rest"]) == (1.0, 0.0)
    assert shares["elements"] == 64 * 64 + 64
    assert rounding.lost_updates("adamw", options("adamw", "lr=1e-2"), layer)["matrix"] == 0.0
    assert all(torch.equal(p, q) for p, q in zip(layer.parameters(), before))


@pytest.mark.parametrize("name", list(RATES))
def test_at_the_papers_rates_nearest_loses_most_updates_of_a_matrix(name):
    layer = torch.nn.Linear(256, 256, bias=False)
    with torch.no_grad():
        layer.weight.normal_(std=0.02)
    layer.to(torch.bfloat16)
    layer.weight.grad = torch.randn_like(layer.weight)
    lost = rounding.lost_updates(name, options(name), layer)["matrix"]
    more = rounding.lost_updates(name, options(name, "lr=1e-1"), layer)["matrix"]
    assert 0.3 < lost <= 1.0
    assert more < 0.05
    assert not math.isnan(lost)
