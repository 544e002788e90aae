# SPDX-License-Identifier: Apache-2.0
"""Which answer a text gives, and when two answers are the same: docs/finetune.md lists the rules.

Answers are equal if their normal forms are, or if both are numbers of the same exact value.
Nothing is simplified: x+1 and 1+x are different answers.
"""

import re
from fractions import Fraction

_NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?"
_SPACES = re.compile(r"(?<!\\)\\[ ,;:]|\\q?quad\b|~")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![a-zA-Z])")
_WORDS = r"\\(?:text|mbox|mathrm|textrm|textbf|textit|mathbf|operatorname)\s*\{([^{}]*)\}"
_UNITS = re.compile(rf"(?<=[\d.}})])\s*{_WORDS}(?:\^\{{?\d\}}?)?\s*$")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\{[^{}]*\}|[0-9a-zA-Z])\s*(\{[^{}]*\}|[0-9a-zA-Z])")
_PLAIN_FRACTION = re.compile(r"^(-?)(\d+)/(\d+)$")
_LATEX_FRACTION = re.compile(r"^(-?)(\d*)\\frac\{(-?\d+)\}\{(-?\d+)\}$")


def _boxed(text: str) -> tuple[int, str] | None:
    """Position and contents of the last \\boxed{...}."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].split("box", 1)[1].removeprefix("ed").lstrip()
    if not rest.startswith("{"):
        return start, re.split(r"[\s$.,]", rest, maxsplit=1)[0]
    depth = 0
    for place, sign in enumerate(rest):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return start, rest[1:place]
    return start, rest[1:]  # cut in the middle: what is there


def extract(text: str) -> str:
    """The answer in a solution: the last \\boxed{...} or '#### ...', whichever is later; without
    either, what follows the last "answer is"; else the last number; else nothing."""
    boxed = _boxed(text)
    marked = text.rfind("####")
    if boxed and boxed[0] > marked:
        return boxed[1].strip()
    if marked >= 0:
        return text[marked + 4 :].strip().split("\n", 1)[0].strip()
    said = list(
        re.finditer(r"answer is:?\s*([^\n]+?)(?=[.]?\s*(?:\n|$)|\.\s)", text, re.IGNORECASE)
    )
    if said:
        return said[-1][1].strip()
    numbers = [found[0] for found in re.finditer(_NUMBER, text) if re.search(r"\d", found[0])]
    return numbers[-1] if numbers else ""


def _without_shell(text: str) -> str:
    """Without what only sets an answer off: math signs, a final full stop."""
    text = text.strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].strip()
    for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
            text = text[len(left) : -len(right)].strip()
    return text.removesuffix(".").strip()


def _braced(found: re.Match[str]) -> str:
    parts = (part if part.startswith("{") else f"{{{part}}}" for part in found.groups())
    return "\\frac" + "".join(parts)


def _top_level(text: str) -> list[str]:
    """Parts between commas that no bracket encloses."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def normalise(answer: str) -> str:
    """The normal form of one answer."""
    text = _without_shell(answer)
    text = text.replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "")
    text = (
        text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    )
    text = (
        text.replace("{,}", ",").replace("−", "-").replace("\\leq", "\\le").replace("\\geq", "\\ge")
    )
    text = re.sub(r"\\!\s*", "", text)  # a negative space
    text = _SIZES.sub("", _SPACES.sub(" ", text))
    text = re.sub(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\degree", "", text)
    text = re.sub(rf"^({_NUMBER})\s+[A-Za-z][A-Za-z .]+$", r"\1", text.strip())  # 18 dollars
    text = _UNITS.sub("", text)
    text = re.sub(_WORDS, r"\1", text)
    text = re.sub(r"\s+(?:and|or)\s+", ",", text)
    text = re.sub(r"^[a-zA-Z]\s*(?:=|\\in(?![a-z]))\s*(?=[^=]+$)", "", text.strip())  # x = 5
    if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text.strip()):
        text = text.replace(",", "")
    parts = _top_level(text)
    if len(parts) > 1:  # several solutions, in any order
        return ",".join(sorted(normalise(part) for part in parts))
    text = re.sub(r"\s+", "", text)
    text = _SHORT_FRACTION.sub(_braced, text)
    text = re.sub(r"\\sqrt([0-9a-zA-Z])", r"\\sqrt{\1}", text)
    text = re.sub(r"([\^_])\{([0-9a-zA-Z])\}", r"\1\2", text)
    text = _PLAIN_FRACTION.sub(r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    return text.lower() if re.fullmatch(r"[A-Za-z]{2,}", text) else text


def value(normal: str) -> Fraction | None:
    """The exact number that a normal form is, if it is one."""
    fraction = _LATEX_FRACTION.match(normal)
    if fraction:
        sign, whole, above, below = fraction.groups()
        if not int(below) or (whole and int(above) < 0):
            return None
        # A number before a fraction makes a mixed number, not a product.
        return (-1 if sign else 1) * (int(whole or 0) + Fraction(int(above), int(below)))
    if re.fullmatch(r"[+-]?\d+(?:\.\d*)?", normal):
        return Fraction(normal.rstrip("."))
    return None


def same(answer: str, reference: str) -> bool:
    if not answer.strip():
        return False
    given, wanted = normalise(answer), normalise(reference)
    if given == wanted:
        return True
    numbers = value(given), value(wanted)
    return numbers[0] is not None and numbers[0] == numbers[1]
