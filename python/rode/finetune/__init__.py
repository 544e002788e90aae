# SPDX-License-Identifier: Apache-2.0
"""Full-parameter fine-tuning of causal language models as in the paper: `python -m rode finetune`.
docs/finetune.md has the protocol."""
