# SPDX-License-Identifier: Apache-2.0
"""Search of an optimizer's rates on a task: `python -m rode sweep`. docs/sweep.md has the protocol."""
