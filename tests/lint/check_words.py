# SPDX-License-Identifier: Apache-2.0
"""Refuses phrases that readers have stumbled over, in documentation, comments and messages.

Each has a plain equivalent; docs/glossary.md has the terms. A phrase is found across line ends too.

Usage: check_words.py [ROOT]
"""

import pathlib
import re
import sys

import check_files
import source_tree

# These hold the phrases themselves.
OWN = ("tests/lint",)

NOT_A_NOUN = r"(?!(?:as|at|by|for|from|if|in|is|of|on|so|than|that|to|where|with|without)\b)"
COUNTED = (
    r"(?:bytes|scalars|launches|tokens|nats|FLOPs|operations|milliseconds|once|"
    rf"(?:one|two|three|(?<![\w.-])\d+(?:\.\d+)?) {NOT_A_NOUN}[a-z]+)"
)
UNIT = (
    r"(?:parameter|element|matrix|step|job|thread|layer|block|second|iteration|file|line|mode|shape|"
    r"task|call|pass|row|class|group|tile|batch|byte|token|logit|trial|evaluation|dtype|folder|"
    r"subcommand|optimizer|bucket|start|restart|run|weight|tensor|launch|rank|epoch|sample|warp|"
    r"CTA|cluster|processor)"
)
# (pattern, plain words); a space stands for any space, line ends and comment signs included.
PHRASES = [
    (rf"\b{COUNTED}(?: of (?:state|memory))? an? {UNIT}\b(?!')", "'per' for a ratio"),
    (r"\bbut for\b", "'except', 'except for'"),
    (r"\bothers than\b", "'different from'"),
    (r"\banew\b", "'again', or a verb with 're-'"),
    (r"\binside of\b", "'inside'"),
    (r"\bto the bit\b", "'bit for bit'"),
    (r"\bin silence\b", "'silently'"),
    (r"\bwithout a word\b", "'silently', 'without a warning'"),
    (
        r"\bof (?:a|the) (?:caller|user)'s(?= ?[,.:;)]| (?:for|in|on|that|to) )",
        "'the caller's own'",
    ),
    (r"\bis no such (?:count|number|value)\b", "'expected ..., got ...'"),
    (r"\bsymmetry leaves\b", "'products still needed once symmetry is used'"),
    (r"\brefused to tell\b", "'returned an error'"),
    (r"\brandom streams?\b", "'random sequence'"),
    (r"\bcannot be had\b", "'is not available'"),
    (r"\b(?:user|caller) should hear\b", "'messages for the user'"),
    (r"\b(?:is|are|was|were) told to\b", "'is reported to'"),
    (r"\btold apart\b", "'distinguished'"),
    (r"\bdealt out\b", "'divided between'"),
    (r"\bmemory ran out\b", "'the process ran out of memory'"),
    (r"\bso many processes\b", "'number of processes'"),
    (r"\bleft of all\b", "'left in total'"),
    (r"\bleave one of the two out\b", "'set only one of them'"),
    (r"(?<!there\x20)\bis no (?:JSON|folder|object|option|optimizer|text)\b", "'is not a ...'"),
    (r"\bfor good\b", "'from then on', 'permanently'"),
    (r"\bgoes on behind\b", "'continues after'"),
    (r"\bbehind their last\b", "'after'"),
    (r"\bwhat follows -- is\b", "'arguments after --'"),
    (r"\b(?:conditioned|tangent) kernel\b|\bkernel norm\b", "'iterate'"),
]
# The same in prose only: code may still use the word as a name.
PROSE = [(r"\bchunks?\b", "'tile', 'batch' or 'slice'")]

GAP = r'(?:\s*"\s*\n\s*"\s*|\s+(?:(?://+|#)[ \t]*)?)'
COMMENTS = re.compile(r'//[^\n]*|#[^\n]*|""".*?"""', re.DOTALL)


def compiled(rules):
    return [(re.compile(text.replace(" ", GAP), re.IGNORECASE), plain) for text, plain in rules]


def without_code(file: pathlib.Path, text: str) -> str:
    """The text with everything except comments blanked, so that positions stay."""
    if file.suffix == ".md":
        return text
    kept = [" " if sign != "\n" else "\n" for sign in text]
    for comment in COMMENTS.finditer(text):
        kept[comment.start() : comment.end()] = comment[0]
    return "".join(kept)


def problems_of(file: pathlib.Path, text: str):
    for rules, checked in ((PHRASES, text), (PROSE, without_code(file, text))):
        for pattern, plain in compiled(rules):
            for match in pattern.finditer(checked):
                number = text.count("\n", 0, match.start()) + 1
                found = " ".join(re.sub(GAP, " ", match[0]).split())
                yield number, f"'{found}': write {plain}"


def is_checked(file: pathlib.Path) -> bool:
    path = file.as_posix()
    skipped = any(path == name or path.startswith(name + "/") for name in OWN)
    return not skipped and (check_files.is_source(file) or file.suffix in (".md", ".toml"))


def main() -> None:
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else source_tree.ROOT
    problems = []
    checked = 0
    for file in source_tree.files(root):
        if not is_checked(file):
            continue
        checked += 1
        found = sorted(problems_of(file, (root / file).read_text("utf-8")))
        problems += [f"{file}:{number}: {what}" for number, what in found]
    source_tree.finish("check_words", checked, problems)


if __name__ == "__main__":
    main()
