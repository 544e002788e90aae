# SPDX-License-Identifier: Apache-2.0
"""Evaluation of fine-tuned language models as in the paper: `python -m rode evaluate`.
docs/finetune.md has the protocol."""
