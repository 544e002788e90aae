# SPDX-License-Identifier: Apache-2.0
"""Writes tests/lab/golden/resize.json: checksums of images that Pillow has resized.

Usage: generate_resize.py (needs Pillow and numpy)
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

# (width, height, box or None, new width, new height)
CASES = [
    (32, 32, None, 224, 224),
    (32, 32, (5, 3, 20, 25), 224, 224),
    (500, 375, None, 224, 224),
    (500, 375, None, 341, 256),
    (500, 375, (17, 80, 301, 222), 224, 224),
    (333, 500, (0, 0, 333, 499), 32, 224),
    (64, 64, None, 64, 32),
    (64, 64, None, 32, 64),
    (64, 64, None, 64, 64),
    (7, 5, None, 1, 1),
    (1, 1, None, 9, 4),
    (2, 3, None, 5, 2),
]


def picture(width, height):
    """The same pixels as the C++ test makes: a multiplicative hash of the byte's place."""
    place = np.arange(width * height * 3, dtype=np.uint64)
    return ((place * np.uint64(2654435761) % np.uint64(1 << 32)) >> np.uint64(24)).astype(np.uint8)


def main():
    cases = []
    for width, height, box, new_width, new_height in CASES:
        pixels = picture(width, height).reshape(height, width, 3)
        x, y, w, h = box or (0, 0, width, height)
        part = Image.fromarray(np.ascontiguousarray(pixels[y : y + h, x : x + w]))
        out = part.resize((new_width, new_height), Image.Resampling.BILINEAR)
        cases.append(
            {
                "from": [width, height],
                "box": [x, y, w, h],
                "to": [new_width, new_height],
                "sha256": hashlib.sha256(out.tobytes()).hexdigest(),
            }
        )
    target = Path(__file__).parent / "golden" / "resize.json"
    golden = {"made_by": f"Pillow {PIL.__version__}, BILINEAR", "cases": cases}
    target.write_text(json.dumps(golden, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
