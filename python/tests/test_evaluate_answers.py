# SPDX-License-Identifier: Apache-2.0
"""The answer normaliser: which answer a text gives, and which answers are the same."""

import pytest
from tiny_lm import DATA

from rode.evaluate.answers import extract, normalise, same
from rode.evaluate.tasks import TASKS, questions_of
from rode.finetune.data import rows_of


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("48/2 = <<48/2=24>>24\n#### 72", "72"),
        ("#### 1\nno: #### 2 dollars\nQuestion:", "2 dollars"),
        ("so $\\boxed{\\frac{1}{2}}$ or $\\boxed{\\text{(C)}}$.", "\\text{(C)}"),
        ("\\boxed{3} but then\n#### 4", "4"),
        ("#### 4 and then \\boxed{3}", "3"),
        ("\\boxed 5$ is right", "5"),
        ("\\fbox{7}", "7"),
        ("\\boxed{\\frac{1}{2", "\\frac{1}{2"),
        ("The answer is 12.5. Or so", "12.5"),
        ("The answer is: $x+1$.", "$x+1$"),
        ("first 3, then 1,234 apples", "1,234"),
        ("it falls by -3.5", "-3.5"),
        ("nothing", ""),
        ("", ""),
    ],
)
def test_the_answer_of_a_text(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("72", "72"),
        ("72.0", "72"),
        ("1,000", "1000"),
        ("10,\\!080", "10080"),
        ("$18", "18"),
        ("\\$18.90", "18.9"),
        ("18 dollars", "18"),
        ("50\\%", "50"),
        ("0.5", "\\frac{1}{2}"),
        (".5", "\\frac12"),
        ("1/2", "\\dfrac{1}{2}"),
        ("-1/2", "-\\frac{1}{2}"),
        ("\\frac{-1}{2}", "-\\frac{1}{2}"),
        ("1\\frac{4}{5}", "\\frac{9}{5}"),
        ("2/4", "1/2"),
        ("\\frac 34", "\\frac{3}{4}"),
        ("$\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"),
        ("11\\sqrt2", "11\\sqrt{2}"),
        ("90^\\circ", "90"),
        ("\\text{Evelyn}", "evelyn"),
        ("x = 5", "5"),
        ("x \\in [-2,7]", "[-2,7]"),
        ("864 \\mbox{ inches}^2", "864"),
        ("5.4 \\text{ cents}", "5.4"),
        ("1,-2", "-2, 1"),
        ("3 and 5", "5,3"),
        ("x^{2}+1", "x^2 + 1"),
        ("\\text{(C)}", "(C)"),
    ],
)
def test_answers_that_are_the_same(answer, reference):
    assert same(answer, reference) and same(reference, answer)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("", ""),
        ("", "0"),
        ("72", "73"),
        ("-72", "72"),
        ("0.333", "\\frac{1}{3}"),
        ("(1,2)", "(2,1)"),
        ("[1,2)", "[1,2]"),
        ("1,23", "123"),
        ("\\frac{1}{2}", "\\frac{2}{1}"),
        ("\\sqrt{2}", "2"),
        ("x+1", "1+x"),
        ("6r", "6"),
        ("2516_8", "2516"),
        ("\\text{even}", "\\text{odd}"),
        ("N", "n"),
        ("1/0", "2/0"),
    ],
)
def test_answers_that_are_different(answer, reference):
    assert not same(answer, reference) and not same(reference, answer)


def test_a_normal_form_is_its_own():
    for text in (
        "\\frac12",
        "1,-2",
        "\\text{Evelyn}",
        "x \\in [-2,7]",
        "5.0",
        "y = 2x+3",
        "$\\$5$",
    ):
        once = normalise(text)
        assert normalise(once) == once


def test_every_reference_at_hand_matches_itself():
    files = {name: DATA / "eval" / f"{name}.jsonl.xz" for name in ("gsm8k_test", "math500_test")}
    for path in files.values():
        if not path.exists():
            pytest.skip(f"no {path}; set RODE_SHARED_DATA")
    for _, row in rows_of(files["gsm8k_test"]):
        assert same(extract(row["answer"]), row["answer"].rsplit("####", 1)[1])
    for _, row in rows_of(files["math500_test"]):
        assert same(extract(row["solution"]), row["answer"]), row["answer"]
        assert same(row["answer"], row["answer"])


def test_the_real_files_have_the_counts_that_the_documentation_names():
    counts = {"gsm8k": 1319, "math500": 500, "mmlu_stem": 3018, "mmlu_pro_math": 1351}
    for name, count in counts.items():
        path = DATA / "eval" / f"{TASKS[name].file}.xz"
        if not path.exists():
            pytest.skip(f"no {path}; set RODE_SHARED_DATA")
        questions = questions_of(TASKS[name], path, None)
        assert len(questions) == count
        assert (TASKS[name].paper_count == count) == (name != "mmlu_stem")
        assert all(2 <= q.options <= 10 for q in questions) != TASKS[name].written
