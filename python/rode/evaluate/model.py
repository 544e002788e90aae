# SPDX-License-Identifier: Apache-2.0
"""Answers of a model: greedy generation and letters by log-likelihood, batched with padding on the
left.

Padding and batch size change logits by rounding. Where the two best candidates are closer than
`MARGIN`, far more than fp32's rounding, that could change an answer: such questions are answered
again alone, so that in fp32 answers do not depend on the batch size.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from rode.finetune.checkpoint import transformers
from rode.finetune.encode import answer_text, prompt_text, prompt_tokens

# In logits or log-likelihoods.
MARGIN = 1e-3


@dataclass
class Answer:
    text: str
    tokens: int  # written
    scores: list[float] = field(default_factory=list)  # of the letters
    close: bool = False  # two candidates were within MARGIN
    alone: bool = False  # answered again without others


class _Margins:
    """Watches a generation: by how much each row's best token led, until the row ended.

    A few small kernels per token, and nothing that the host waits for: it is ahead of the device
    while tokens are written, and a wait would cost more than the model's own kernels."""

    def __init__(self, rows: int, ends: list[int], device: torch.device) -> None:
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.least = torch.full((rows,), torch.inf, device=device)
        self.begun = False

    def __call__(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.begun:  # the last token of a prompt ends nothing
            self.ended |= (tokens[:, -1:] == self.ends).any(dim=1)
        self.begun = True
        best = torch.topk(scores.float(), 2, dim=-1).values
        lead = (best[:, 0] - best[:, 1]).masked_fill(self.ended, torch.inf)
        self.least = torch.minimum(self.least, lead)
        return scores


class Answerer:
    def __init__(
        self, model: Any, tokenizer: Any, form: str, new_tokens: int, settle: bool
    ) -> None:
        """`settle`: whether close questions are answered again alone."""
        self.model, self.tokenizer, self.form = model.eval(), tokenizer, form
        self.new_tokens, self.settle = new_tokens, settle
        self.device = next(model.parameters()).device
        known = getattr(model, "generation_config", None)
        ends = getattr(known, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        self.ends = sorted({*map(int, ends), int(tokenizer.eos_token_id)})
        # The checkpoint's own settings may sample or punish repetition.
        model.generation_config = transformers().GenerationConfig(
            do_sample=False, eos_token_id=self.ends, pad_token_id=int(tokenizer.pad_token_id)
        )

    def prompt(self, question: str) -> str:
        return prompt_text(self.tokenizer, self.form, question)

    def encoded(self, prompt: str) -> list[int]:
        return prompt_tokens(self.tokenizer, self.form, prompt)

    def _padded(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        width = max(map(len, rows))
        tokens = torch.full((len(rows), width), int(self.tokenizer.pad_token_id))
        mask = torch.zeros_like(tokens)
        for i, row in enumerate(rows):
            tokens[i, width - len(row) :] = torch.tensor(row)
            mask[i, width - len(row) :] = 1
        return {"input_ids": tokens.to(self.device), "attention_mask": mask.to(self.device)}

    def written(self, prompts: list[list[int]]) -> list[Answer]:
        """The greedy continuation of each prompt, up to an end token."""
        out = self._generated(prompts)
        if self.settle and len(prompts) > 1:
            for i in (i for i, answer in enumerate(out) if answer.close):
                out[i] = self._generated([prompts[i]])[0]
                out[i].alone = True
        return out

    @torch.no_grad()
    def _generated(self, prompts: list[list[int]]) -> list[Answer]:
        batch = self._padded(prompts)
        width = batch["input_ids"].shape[1]
        margins = _Margins(len(prompts), self.ends, self.device)
        made = self.model.generate(
            **batch,
            max_new_tokens=self.new_tokens,
            logits_processor=transformers().LogitsProcessorList([margins]),
        )
        out = []
        for row, lead in zip(made[:, width:].tolist(), margins.least.tolist(), strict=True):
            end = next((i for i, token in enumerate(row) if token in self.ends), len(row))
            text = self.tokenizer.decode(row[:end], skip_special_tokens=True)
            out.append(Answer(text, min(end + 1, len(row)), close=lead < MARGIN))
        return out

    def chosen(self, prompts: list[list[int]], letters: list[list[str]]) -> list[Answer]:
        """Of each prompt the letter with the highest summed log-likelihood; the first of equals."""
        out = self._scored(prompts, letters)
        if self.settle and len(prompts) > 1:
            for i in (i for i, answer in enumerate(out) if answer.close):
                out[i] = self._scored([prompts[i]], [letters[i]])[0]
                out[i].alone = True
        return out

    def _letter_tokens(self, letter: str) -> list[int]:
        text = answer_text(self.form, letter)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _scored(self, prompts: list[list[int]], letters: list[list[str]]) -> list[Answer]:
        ids = {letter: self._letter_tokens(letter) for row in letters for letter in row}
        if all(len(tokens) == 1 for tokens in ids.values()):
            ends = self._log_likelihoods(prompts, 1)[:, -1]
            scores = [
                [float(ends[i, ids[letter][0]]) for letter in row] for i, row in enumerate(letters)
            ]
        else:
            scores = [
                [self._sequence(prompt, ids[letter]) for letter in row]
                for prompt, row in zip(prompts, letters, strict=True)
            ]
        out = []
        for row, own in zip(letters, scores, strict=True):
            best = max(range(len(own)), key=own.__getitem__)
            lead = own[best] - max(score for i, score in enumerate(own) if i != best)
            out.append(Answer(row[best], 0, own, close=lead < MARGIN))
        return out

    def _sequence(self, prompt: list[int], answer: list[int]) -> float:
        table = self._log_likelihoods([prompt + answer], len(answer) + 1)[0]
        return sum(float(table[i, token]) for i, token in enumerate(answer))

    @torch.no_grad()
    def _log_likelihoods(self, rows: list[list[int]], kept: int) -> torch.Tensor:
        """Of every token after each of the last `kept` positions."""
        batch = self._padded(rows)
        places = (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        logits = self.model(
            **batch, position_ids=places, use_cache=False, logits_to_keep=kept
        ).logits[:, -kept:]
        return torch.log_softmax(logits.float(), dim=-1)
