# SPDX-License-Identifier: Apache-2.0
"""Decoupled weight decay, of all elements or cautiously."""

import numpy as np


def decay(w, update, weight_decay, cautious):
    """What is subtracted with the update, both times lr.

    Cautious: nothing from weights whose sign is not that of an update that is not zero.
    """
    if not cautious:
        return weight_decay * w
    return np.where(np.sign(w) == -np.sign(update), 0, weight_decay * w)
