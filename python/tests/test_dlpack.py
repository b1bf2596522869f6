"""Memory that comes by DLPack: of version 1, which tells what must not be written to, and of before."""

import gc
import weakref

import numpy
import pytest

import elastic_node as en

#: NumPy 2.1 is the first that gives version 1.
if numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0":
    pytest.skip(f"numpy {numpy.__version__} has no DLPack of version 1", allow_module_level=True)


@pytest.fixture(autouse=True)
def initialized():
    en.init()
    yield
    en.shutdown()


class Lent:
    """NumPy's memory, by DLPack alone."""

    def __init__(self, array):
        self.array = array
        self.asked = []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.array.__dlpack__(**arguments)


class LentByOlder(Lent):
    """A producer of before version 1."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__()


class Later(Lent):
    """A producer that gives a version that was not asked for."""

    def __dlpack__(self, **arguments):
        import ctypes

        capsule = self.array.__dlpack__(**arguments)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # The struct begins with its major version.
        ctypes.c_uint32.from_address(pointer(capsule, b"dltensor_versioned")).value = 2
        return capsule


class Copied(Lent):
    """A producer that gives a copy."""

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments, copy=True)


@pytest.mark.parametrize("kind", [Lent, LentByOlder])
def test_memory_is_written_in_place_and_given_back(kind):
    array = numpy.arange(6, dtype=numpy.float32)
    lent = kind(array)
    assert en.broadcast_(lent, 0) is lent
    assert en.allreduce_(lent, op=en.Sum) is lent
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    if kind is Lent:
        assert {asked["max_version"] for asked in lent.asked} == {(1, 0)}
    alive = weakref.ref(array)
    del array, lent
    gc.collect()
    assert alive() is None, "the tensor was given back"


def test_read_only_memory_is_refused_in_place_by_its_name_and_read_otherwise():
    array = numpy.arange(3, dtype=numpy.float32)
    array.flags.writeable = False
    with pytest.raises(BufferError, match=r"the Lent is read-only .*without the underscore"):
        en.allreduce_(Lent(array), op=en.Sum)
    with pytest.raises(BufferError, match="read-only"):
        en.broadcast_(Lent(array), 0)
    alive = weakref.ref(array)
    del array
    gc.collect()
    assert alive() is None, "a tensor that is refused is given back"


def test_a_copy_is_refused_in_place():
    with pytest.raises(BufferError, match="the Copied gave a copy"):
        en.allreduce_(Copied(numpy.ones(2)), op=en.Sum)


def test_a_version_that_was_not_asked_for_is_refused():
    with pytest.raises(BufferError, match="DLPack 2.0, although 1.0 was asked for"):
        en.allreduce_(Later(numpy.ones(2)), op=en.Sum)
