# SPDX-License-Identifier: Apache-2.0
"""`python -m rode evaluate`: answers that do not depend on the batch, records that survive a kill,
the table, the agreement with math-verify, bad input."""

import csv
import io
import json
import resource
import statistics
import sys

import pytest
import tiny_lm
import torch
from tiny_lm import DATA

from rode.__main__ import main
from rode._command import Failed, whole_lines
from rode.evaluate import agreement, records, table
from rode.evaluate import model as answering
from rode.evaluate.model import Answerer
from rode.evaluate.tasks import LETTERS, TASKS, questions_of
from rode.finetune import checkpoint


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def place(tmp_path_factory, request):
    """A random checkpoint, whose answers are long and without sense, and small benchmarks."""
    transformers = pytest.importorskip("transformers")
    if request.param == "qwen3_5" and not hasattr(transformers, "Qwen3_5TextConfig"):
        pytest.skip("this transformers has no Qwen3.5")
    folder = tmp_path_factory.mktemp("evaluate")
    tiny_lm.tokenizer(folder / "model")
    tiny_lm.model(folder / "model", request.param)
    tiny_lm.benchmarks(folder / "eval", tiny_lm.questions(7))
    return folder


def answerer(place, form="chat", tokens=16, settle=True):
    model = checkpoint.load_model(place / "model", torch.float32, torch.device("cpu"))
    tokenizer = checkpoint.load_tokenizer(place / "model")
    return Answerer(model, tokenizer, form, tokens, settle)


def command(place, out, *more):
    fixed = ["--model", place / "model", "--data", place / "eval", "--out", out, "--dtype", "fp32"]
    return ["evaluate", *map(str, fixed), "--max-new-tokens", "12", *map(str, more)]


def answers_of(out):
    rows = {}
    for name in TASKS:
        lines = (out / f"{name}.jsonl").read_text("utf-8").splitlines()
        for row in map(json.loads, lines):
            rows[name, row["index"]] = (row["prompt"], row["answer"], row["correct"])
    return rows


def test_answers_do_not_depend_on_the_batch_size(place, tmp_path):
    seen = []
    for size in (1, 3, 8):
        out = tmp_path / str(size)
        assert main(command(place, out, "--batch", size, "--check-batch", 3)) == 0
        seen.append(answers_of(out))
        tasks = json.loads((out / "results.json").read_text("utf-8"))["tasks"]
        for row in tasks.values():
            assert row["asked_alone"] == {"asked": 3, "answers": 0, "verdicts": 0}
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 7 + 7 + 6 + 6
    assert len({answer for _, answer, _ in seen[0].values()}) > 3


def test_close_candidates_are_decided_alone(place, monkeypatch):
    """With a margin that every token is within, the answers are those of a batch of one."""
    monkeypatch.setattr(answering, "MARGIN", 1e9)
    one = answerer(place)
    prompts = [one.encoded(one.prompt(row["question"])) for row in tiny_lm.questions(3)]
    together = one.written(prompts)
    assert all(answer.close and answer.alone for answer in together)
    letters = one.chosen(prompts, [list("ABCD")] * 3)
    assert all(answer.close and answer.alone for answer in letters)
    assert not any(answer.alone for answer in answerer(place, settle=False).written(prompts))


def test_padding_on_the_left_changes_nothing_but_rounding(place):
    one = answerer(place)
    rows = [one.encoded(one.prompt(text)) for text in ("2+2?", "a much longer question: 17+4?")]
    together = one._log_likelihoods(rows, 1)
    for i, row in enumerate(rows):
        alone = one._log_likelihoods([row], 1)[0]
        assert torch.allclose(together[i], alone, atol=answering.MARGIN / 20)
    assert not torch.allclose(together[0], together[1], atol=10 * answering.MARGIN)


def test_generation_is_greedy_whatever_the_checkpoint_says(place):
    one = answerer(place)
    prompt = one.encoded(one.prompt("2+2?"))
    tokens = torch.tensor([prompt])
    for _ in range(16):
        with torch.no_grad():
            best = one.model(input_ids=tokens, use_cache=False).logits[0, -1].argmax()
        if int(best) in one.ends:
            break
        tokens = torch.cat([tokens, best.view(1, 1)], dim=1)
    expected = one.tokenizer.decode(tokens[0, len(prompt) :], skip_special_tokens=True)
    assert one.written([prompt])[0].text == expected
    assert one.model.generation_config.do_sample is False


@pytest.mark.parametrize("form", ["chat", "plain"])
def test_letters_are_chosen_by_their_summed_log_likelihood(place, form):
    """In a plain prompt a space precedes the letter: two tokens."""
    one = answerer(place, form)
    prompt = one.encoded(one.prompt("Pick one"))
    answer = one.chosen([prompt], [list("ABC")])[0]
    scores = []
    for letter in "ABC":
        own = one._letter_tokens(letter)
        assert len(own) == (1 if form == "chat" else 2)
        with torch.no_grad():
            logits = one.model(input_ids=torch.tensor([prompt + own]), use_cache=False).logits[0]
        table_ = torch.log_softmax(logits, dim=-1)
        places = range(len(prompt) - 1, len(prompt) + len(own) - 1)
        scores.append(sum(float(table_[i, t]) for i, t in zip(places, own)))
    assert answer.scores == pytest.approx(scores, abs=1e-4)
    assert answer.text == "ABC"[scores.index(max(scores))]


def test_an_evaluation_continues_where_it_was_cut(place, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(command(place, whole)) == 0
    assert main(command(place, cut)) == 0
    path = cut / "gsm8k.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    marked = json.loads(lines[0])
    marked["answer"] = "kept"  # to show that it is not asked again
    path.write_text(json.dumps(marked) + "\n" + lines[1] + lines[2][:20], "utf-8")
    (cut / "results.json").unlink()
    capsys.readouterr()
    assert main(command(place, cut)) == 2  # not without --resume
    assert main(command(place, cut, "--resume")) == 0
    assert "2 of 7 answers are there already" in capsys.readouterr().err
    before, after = answers_of(whole), answers_of(cut)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {("gsm8k", marked["index"])}
    assert main(command(place, cut, "--resume", "--format", "plain")) == 2


def test_a_full_disk_keeps_the_answers_before_it(place, tmp_path, capsys):
    out, whole = tmp_path / "out", tmp_path / "whole"
    given = ("--tasks", "gsm8k", "--batch", 1)
    assert main(command(place, whole, *given)) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        code = main(command(place, out, *given))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert code == 1 and "earlier lines are kept" in said
    kept = list(whole_lines(out / "gsm8k.jsonl"))
    assert 0 < len(kept) < 7
    assert main(command(place, out, *given, "--resume")) == 0
    assert f"{len(kept)} of 7 answers are there already" in capsys.readouterr().err
    scores = [json.loads((run / "results.json").read_text())["tasks"] for run in (out, whole)]
    assert scores[0]["gsm8k"]["correct"] == scores[1]["gsm8k"]["correct"]


def test_every_record_holds_prompt_answer_and_verdict(place, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(command(place, out, "--tasks", "gsm8k,mmlu_pro_math", "--limit", 4)) == 0
    assert "GSM8K" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "mmlu_pro_math.jsonl").read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3]
    for row in rows:
        assert len(row["scores"]) == 3 + row["index"]
        assert row["answer"] in LETTERS[: 3 + row["index"]]
        assert "multiple choice" in row["prompt"] and "A. 0" in row["prompt"]
        assert row["correct"] == (row["answer"] == row["reference"])


def test_in_bf16_other_answers_are_counted(place, tmp_path):
    out = tmp_path / "out"
    words = command(place, out, "--tasks", "gsm8k", "--check-batch", 7)
    words[words.index("fp32")] = "bf16"
    assert main(words) == 0
    row = json.loads((out / "results.json").read_text("utf-8"))["tasks"]["gsm8k"]
    assert row["asked_alone"]["asked"] == 7
    assert 0 <= row["asked_alone"]["verdicts"] <= row["asked_alone"]["answers"] <= 7
    lines = map(json.loads, (out / "gsm8k.jsonl").read_text("utf-8").splitlines())
    assert not any(line["alone"] for line in lines)


def test_the_real_files_are_answered_where_they_are_at_hand(place, tmp_path):
    if not (DATA / "eval").is_dir():
        pytest.skip(f"no {DATA / 'eval'}; set RODE_SHARED_DATA")
    words = command(place, tmp_path / "out", "--limit", 2)
    words[words.index("--data") + 1] = str(DATA / "eval")
    assert main(words) == 0
    tasks = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))["tasks"]
    assert {name: row["count"] for name, row in tasks.items()} == dict.fromkeys(TASKS, 2)


def test_bad_benchmarks_are_named_by_line(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    cases = [
        ("gsm8k", {"question": "q", "answer": "no mark"}, "no '####'"),
        ("math500", {"problem": "q"}, "field 'answer'"),
        ("mmlu_stem", {"question": "q", "choices": ["a"], "answer": 0}, "2 to 10 options"),
        ("mmlu_stem", {"question": "q", "choices": ["a", "b"], "answer": 2}, "expected 0 to 1"),
        ("mmlu_pro_math", {"question": "q", "options": ["a", "b"], "answer": "A"}, "answer_index"),
    ]
    for name, row, said in cases:
        tiny_lm.write_lines(path, [row])
        with pytest.raises(Failed, match=f"line 1.*{said}"):
            questions_of(TASKS[name], path, None)
    path.write_text("", "utf-8")
    with pytest.raises(Failed, match="holds no questions"):
        questions_of(TASKS["gsm8k"], path, None)
    for given, code, said in (
        (["--model", "m"], 2, "--out is missing"),
        (["--model", "m", "--out", "o"], 2, "no data"),
        (["--model", "m", "--out", "o", "--task", "arc=x"], 2, "gsm8k"),
        (["--model", "m", "--out", "o", "--data", str(tmp_path)], 1, "has no gsm8k_test.jsonl"),
        (["--model", "m", "--run", "r"], 2, "either --run or --model"),
        (["--run", str(tmp_path), "--data", "d"], 1, "no best model yet"),
    ):
        assert main(["evaluate", *given]) == code
        assert said in capsys.readouterr().err


def test_a_number_of_questions_unlike_the_papers_is_said(place, tmp_path, capsys):
    assert main(command(place, tmp_path / "out", "--tasks", "mmlu_stem")) == 0
    assert "has 6 questions" in (said := capsys.readouterr().err) and "the paper has 3153" in said


# ---- The table ------------------------------------------------------------------------------


def results(folder, name, seed, loss, accuracy, **more):
    folder.mkdir()
    tasks = {task: {"accuracy": accuracy + i} for i, task in enumerate(TASKS)}
    row = {"optimizer": name, "seed": seed, "best_validation_loss": loss, "tasks": tasks, **more}
    (folder / "results.json").write_text(json.dumps(row), "utf-8")
    return folder


def test_the_table_has_means_sample_deviations_and_the_papers_values(tmp_path, capsys):
    values = {"rode": [80.0, 82.0, 87.0], "adamw": [79.0, 80.0, 81.0]}
    folders = [
        results(tmp_path / f"{name}{seed}", name, seed, 0.3 + 0.01 * seed, accuracy)
        for name, row in values.items()
        for seed, accuracy in enumerate(row)
    ]
    words = list(map(str, folders))
    assert main(["evaluate", "table", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    sd = statistics.stdev(values["rode"])
    assert f"**83.00 ± {sd:.2f}** (paper 85.47 ± 0.46)" in lines[-1]
    assert "80.00 ± 1.00 (paper 79.58 ± 0.52)" in lines[2]
    assert "**0.3100 ± 0.0100**" in lines[2]  # equal means: both are best
    assert lines[3] == "| Muon Original | 0 | - | - | - | - | - |"
    assert main(["evaluate", "table", *words, "--form", "latex"]) == 0
    shown = capsys.readouterr().out
    assert f"$\\mathbf{{83.00 \\pm {sd:.2f}}}$" in shown and "$85.47 \\pm 0.46$" in shown
    assert main(["evaluate", "table", *words, "--form", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 6 * len(table.COLUMNS)
    assert main(["evaluate", "table", *words, "--json"]) == 0
    best = [row for row in json.loads(capsys.readouterr().out) if row["best"]]
    assert {row["optimizer"] for row in best} == {"RODE", "AdamW"}
    assert main(["evaluate", "table", *words, words[0]]) == 1
    assert "rode with seed 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key,value",
    [
        ("steps", 800),
        ("split", "other"),
        ("format", "plain"),
        ("limit", 5),
        ("max_new_tokens", 64),
        ("options", {"lr": 2e-5, "seed": 1}),
    ],
)
def test_runs_of_different_protocols_are_not_averaged(tmp_path, capsys, key, value):
    told = {"steps": 3000, "split": "a", "format": "chat", "limit": None, "max_new_tokens": 512}
    told["options"] = {"lr": 1e-5, "seed": 0}
    again = {**told, "options": {"lr": 1e-5, "seed": 1}}
    words = [
        str(results(tmp_path / "0", "rode", 0, 0.3, 80.0, **told)),
        str(results(tmp_path / "1", "rode", 1, 0.3, 81.0, **again)),
        str(results(tmp_path / "2", "rode", 2, 0.3, 82.0, **{**again, key: value})),
    ]
    assert main(["evaluate", "table", *words[:2]]) == 0
    assert main(["evaluate", "table", *words]) == 1
    said = capsys.readouterr().err
    assert {"options": "option lr = 1e-05"}.get(key, f"{key} = {told[key]}") in said
    assert "expected the same in all seeds" in said
    assert main(["evaluate", "table", words[0], str(results(
        tmp_path / "3", "soap", 2, 0.3, 82.0, **{**again, key: value}))]) == 0  # fmt: skip


def test_one_seed_has_no_deviation_and_strangers_are_refused(tmp_path, capsys):
    one = results(tmp_path / "one", "soap", 0, None, 50.0)
    assert main(["evaluate", "table", str(one)]) == 0
    assert "**50.00** (paper 81.68" in capsys.readouterr().out
    assert main(["evaluate", "table", str(one), str(tmp_path)]) == 0
    assert f"'{tmp_path}' has no results.json and is left out" in capsys.readouterr().err
    other = results(tmp_path / "other", None, None, None, 50.0)
    assert main(["evaluate", "table", str(other)]) == 1
    assert "does not name an optimizer" in capsys.readouterr().err


# ---- The agreement --------------------------------------------------------------------------


def test_the_agreement_lists_what_differs(tmp_path, capsys):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    folder = tiny_lm.benchmarks(tmp_path / "eval", tiny_lm.questions(3))
    rows = [
        {"problem": "p", "solution": f"So $\\boxed{{{text}}}$.", "answer": text}
        for text in ("\\frac{3}{4}", "2k+2", "1, 5", "\\sqrt{2}", "1234")
    ]
    tiny_lm.write_lines(folder / "math500_test.jsonl", rows)
    assert main(["evaluate", "agreement", "--data", str(folder), "--json", "--pairs", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = found["rows"]
    assert kinds["GSM8K: the solution's answer"]["agree"] == 3
    for kind in ("the solution's answer", "the reference with itself", "thousands", "slash"):
        row = kinds[f"MATH-500: {kind}"]
        assert row["same_here"] == row["same_there"] == row["compared"], kind
    assert kinds["MATH-500: answers of different questions"]["same_here"] == 0
    swapped = [case for case in found["disagreements"] if case["kind"].endswith("terms swapped")]
    assert [(case["answer"], case["here"]) for case in swapped] == [("2+2k", False)]
    assert main(["evaluate", "agreement", "--data", str(folder), "--pairs", "5"]) == 0
    assert "| `2+2k` | `2k+2` | different | same |" in capsys.readouterr().out


def test_without_math_verify_the_remedy_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    folder = tiny_lm.benchmarks(tmp_path / "eval", tiny_lm.questions(1))
    assert main(["evaluate", "agreement", "--data", str(folder)]) == 1
    assert "pip install math-verify" in capsys.readouterr().err


def test_a_reference_that_does_not_match_itself_fails_the_agreement():
    cases = iter([("MATH-500: the solution's answer", "1", "2")])
    found = agreement.compare(cases, lambda answer, reference: True)
    assert found["rows"]["MATH-500: the solution's answer"]["same_here"] == 0
    assert len(found["disagreements"]) == 1


def test_verdicts_use_the_normaliser():
    question = questions_of.__globals__["Question"](0, "q", "\\frac{1}{2}", 0)
    answer = answering.Answer("so it is $\\boxed{0.5}$.", 9)
    assert records.verdict(TASKS["math500"], question, answer) == ("0.5", True)
