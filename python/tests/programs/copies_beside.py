"""Main memory in the place of a GPU's, for programs of the tests: tensors are copied on another thread, and each commit's copies
take a while. `COPIES_TAKE_S` has programs import it."""

import threading
import time

from elastic_node import _torch_tensors


def pretend(taken_s):
    def copy_beside(contents):
        staged = [content.clone() for content in contents]
        parts = [content.new_zeros(content.shape) for content in contents]

        def copy():
            time.sleep(taken_s)
            for part, content in zip(parts, staged):
                part.copy_(content)

        copying = threading.Thread(target=copy)
        copying.start()
        return parts, copying.join

    _torch_tensors.is_on_gpu = lambda value: True
    _torch_tensors.copy_beside = copy_beside
