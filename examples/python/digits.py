"""The handwritten digits, for the examples here; their source: examples/data/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

import numpy
from numpy.typing import NDArray

Images = NDArray[numpy.floating]
Labels = NDArray[numpy.int64]

CLASSES = 10
PIXELS = 64

_DATA = Path(__file__).resolve().parent.parent / "data" / "digits.csv"


def load() -> Tuple[Images, Labels, Images, Labels]:
    """Images and labels to learn from, and, every fifth, to be tested on. Pixels go from 0 (white) to 1 (black)."""
    table = numpy.loadtxt(_DATA, delimiter=",", dtype=numpy.float32)
    images, labels = table[:, :PIXELS] / 16, table[:, PIXELS].astype(numpy.int64)
    test = numpy.arange(len(table)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]
