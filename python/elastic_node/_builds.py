"""Horovod's questions about how it was built, which scripts ask before they choose their way. Programs call them."""

from __future__ import annotations

from . import _context


def mpi_built() -> bool:
    """No: MPI has no part in this."""
    return False


def mpi_enabled() -> bool:
    """No."""
    return False


def mpi_threads_supported() -> bool:
    """No."""
    return False


def gloo_built() -> bool:
    """No: the CPU's collectives are this package's own."""
    return False


def gloo_enabled() -> bool:
    """No."""
    return False


def nccl_built() -> int:
    """0, "not built in": CUDA and NCCL are loaded when a job asks for them (`--backend nccl`)."""
    return 0


def cuda_built() -> bool:
    """Not built in; see `nccl_built`."""
    return False


def rocm_built() -> bool:
    """No."""
    return False


def ddl_built() -> bool:
    """No."""
    return False


def ccl_built() -> bool:
    """No."""
    return False


def is_homogeneous() -> bool:
    """Whether all hosts have as many workers, as far as this rank's numbers tell."""
    _rank, size, _local_rank, local_size, _cross_rank, cross_size = _context.place()
    return size == local_size * cross_size
