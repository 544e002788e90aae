# SPDX-License-Identifier: Apache-2.0
"""Text to tokens: the tokenizer's chat template or a plain prompt, and which tokens the loss
counts."""

from dataclasses import dataclass
from typing import Any

import torch

from rode._command import Failed, note
from rode.finetune.data import Example

FORMATS = ("auto", "chat", "plain")
_PLAIN = "Question: {prompt}\nAnswer:"
IGNORED = -100  # torch's and transformers' label of tokens that the loss leaves out


@dataclass(frozen=True)
class Encoded:
    tokens: list[int]
    prompt: int  # how many of them the loss leaves out


def chosen_format(tokenizer: Any, asked: str) -> str:
    """`auto`: chat where the tokenizer has a template."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if asked == "chat" and not has_template:
        raise Failed(
            "[tokenizer] the tokenizer has no chat template; expected chat_template in the "
            "checkpoint; use --format plain"
        )
    return asked if asked != "auto" else ("chat" if has_template else "plain")


def check_tokenizer(tokenizer: Any, vocabulary: int) -> None:
    """Raises where training or generating would fail or never end."""
    end = tokenizer.eos_token_id
    if end is None:
        raise Failed(
            "[tokenizer] the tokenizer has no end-of-sequence token, so answers would not end; "
            "set eos_token in tokenizer_config.json"
        )
    if len(tokenizer) > vocabulary:
        raise Failed(
            f"[tokenizer] the tokenizer has {len(tokenizer)} tokens, but the model's embedding "
            f"has {vocabulary} rows; use the checkpoint's own tokenizer"
        )
    probe = "Question: 12 + 3 = 15\n#### 15 A"
    unknown = tokenizer.unk_token_id
    tokens = tokenizer(probe, add_special_tokens=False)["input_ids"]
    if not tokens or (unknown is not None and unknown in tokens):
        raise Failed(
            f"[tokenizer] the tokenizer has no tokens for parts of {probe!r}, so answers could "
            "not be written; use a tokenizer that covers digits, letters and '#'"
        )


def prompt_text(tokenizer: Any, form: str, prompt: str) -> str:
    """What the model sees before it answers."""
    if form == "plain":
        return _PLAIN.format(prompt=prompt)
    # Templates of thinking models begin a thought unless told not to; others ignore the word.
    return str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
    )


def answer_text(form: str, answer: str) -> str:
    """A plain prompt ends with a colon, after which a space begins the answer."""
    return answer if form == "chat" else f" {answer}"


def prompt_tokens(tokenizer: Any, form: str, text: str) -> list[int]:
    # A template writes its own special tokens.
    tokens = list(tokenizer(text, add_special_tokens=form == "plain")["input_ids"])
    if form == "plain" and tokens and tokens[-1] == tokenizer.eos_token_id:
        tokens.pop()  # of tokenizers that end every text
    return tokens


def encoded(tokenizer: Any, form: str, example: Example) -> Encoded:
    """Prompt and answer are tokenized apart, so that no token spans both: the model is asked at
    the same boundary. The answer ends with the end-of-sequence token."""
    prompt = prompt_tokens(tokenizer, form, prompt_text(tokenizer, form, example.prompt))
    answer = tokenizer(answer_text(form, example.answer), add_special_tokens=False)["input_ids"]
    return Encoded([*prompt, *answer, tokenizer.eos_token_id], len(prompt))


def encoded_all(
    tokenizer: Any, form: str, examples: list[Example], length: int, what: str
) -> list[Encoded]:
    """All examples, cut to `length` tokens; those without an answer token left are an error."""
    out = []
    cut = 0
    for number, example in enumerate(examples, 1):
        whole = encoded(tokenizer, form, example)
        if whole.prompt >= length:
            raise Failed(
                f"[data] {what} example {number} has a prompt of {whole.prompt} tokens; expected "
                f"fewer than --length {length}; raise --length or remove the example"
            )
        cut += len(whole.tokens) > length
        out.append(Encoded(whole.tokens[:length], whole.prompt))
    if cut:
        note(f"{cut} of {len(out)} {what} examples are cut at {length} tokens")
    return out


def batch_of(rows: list[Encoded], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """One micro-batch, padded on the right; prompt and padding have no label."""
    width = max(len(row.tokens) for row in rows)
    tokens = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), IGNORED)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        size = len(row.tokens)
        tokens[i, :size] = torch.tensor(row.tokens)
        labels[i, row.prompt : size] = tokens[i, row.prompt : size]
        mask[i, :size] = 1
    out = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return {key: value.to(device) for key, value in out.items()}
