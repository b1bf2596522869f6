"""The handwritten digits, for the examples here; where they are from: examples/data/README.md."""

from pathlib import Path
from typing import Tuple

import numpy

CLASSES = 10
PIXELS = 64

_DATA = Path(__file__).resolve().parent.parent / "data" / "digits.csv"


def load() -> Tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Images and labels to learn from, and, every fifth, to be tested on. Pixels go from 0 (white) to 1 (black)."""
    table = numpy.loadtxt(_DATA, delimiter=",", dtype=numpy.float32)
    images, labels = table[:, :PIXELS] / 16, table[:, PIXELS].astype(numpy.int64)
    test = numpy.arange(len(table)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]
