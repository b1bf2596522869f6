"""`run`: a training function is called in each generation. Programs reach it as `elastic_node.elastic.run`."""

from __future__ import annotations

import functools
import inspect
import traceback
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set, TypeVar

from . import _context
from ._native import CollectiveError, HostsUpdatedInterrupt
from ._state import State

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")
AnyState = TypeVar("AnyState", bound=State)


def run(
    func: Callable[Concatenate[AnyState, Arguments], Result],
) -> Callable[Concatenate[AnyState, Arguments], Result]:
    """Makes a training function elastic: `train(state, …)` is called in every generation that this worker takes part
    in, until it has returned on every rank, or this worker is told to leave.

    Before each call the ranks are new, and the state is in step with all others. When a worker is lost, the
    collectives in it raise `CollectiveError`, and the state goes back to the last commit; when the world changes as
    planned, a commit raises `HostsUpdatedInterrupt`, and live state is kept. Let both pass. So it begins where the
    state says, not at the beginning, and without gradients of torch's modules and optimisers in the state. To return is
    to commit: every rank returns after the same step. If one returns while others go on, the generation ends, and
    training goes on from the state that it returned with.

    The first argument is a `State`. Returns what the function returned last. The code after that in the program runs
    on the ranks that have trained to the end, and on no others. A worker that was told to leave before, or that came
    when training had ended, ends here, as does every worker of a job that is stopped.

    Raises:
        Exception: what the function raised of its own.
        SystemExit: this worker has no part in the job any more, and holds no state that was trained to the end. Its code is 0.
        ElasticError: the job failed, or the driver is gone.
        RuntimeError: another thread calls it than the one that called `init`.
        TypeError, AttributeError, pickle.PicklingError: the state has something that pickle does not take. It is looked for
            before training, too.
        ValueError: arrays of an `ObjectState` share memory, of which each rank that takes the state over would get copies.
        TypeError: the first argument is no `State`; `func` is a coroutine function or a generator function, or returns what
            such a function does: it would not have trained.
    """
    _check_trains(func)

    @functools.wraps(func)
    def train(state: AnyState, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not isinstance(state, State):
            raise TypeError(f"the first argument must be a State, not {type(state).__name__}")
        session = _context.begin_run(state)
        state._session = session
        results: List[Result] = []
        is_back = False
        try:
            state._check_encodable()
            state._begin_run()
            while True:
                goes_on = session.enter()
                if goes_on is None:
                    _context.ended()
                    if not session.has_finished:
                        raise SystemExit(0)
                    return results[-1]
                _context.entered(session)
                state._has_committed = False
                raised: Optional[BaseException] = None
                try:
                    # Ranks that have kept their live state have gradients, and a newcomer has none.
                    state._forget_step()
                    state._complete()
                    if is_back:
                        state._call_own("restore")
                    if goes_on:
                        state.on_reset()
                    state._call_own("sync")
                    results = [_trained(func, func(state, *args, **kwargs))]
                except BaseException as error:
                    raised = _context.uncovered(error)
                    _free_frames(raised)
                _context.check_process(raised)
                _context.leaving()
                session.conclude(raised)
                is_back = isinstance(raised, CollectiveError)
                del raised
        finally:
            state._session = None
            state._end_run()
            _context.end_run()

    return train  # type: ignore[return-value]  # Its first argument may be given by its name, too.


def _free_frames(error: Optional[BaseException]) -> None:
    """Frees what a training function held that the end of its generation broke off, such as a replica with hooks on the
    parameters, or a loader with processes. A handle of an operation keeps its error, and with it these frames, in a cycle."""
    if not isinstance(error, (CollectiveError, HostsUpdatedInterrupt)):
        return
    seen: Set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _check_trains(func: Any) -> None:
    """Refuses a function whose call does not run its body."""
    # The second one is for objects that are called as functions are.
    for called in (func, type(func).__call__):
        if inspect.iscoroutinefunction(called):
            raise _not_run(func, "is a coroutine function")
        if inspect.isgeneratorfunction(called):
            raise _not_run(func, "is a generator function")
        if inspect.isasyncgenfunction(called):
            raise _not_run(func, "is an asynchronous generator function")


def _trained(func: Any, result: Result) -> Result:
    """What a training function has returned."""
    if inspect.iscoroutine(result):
        result.close()
        raise _not_run(func, "has returned a coroutine")
    if inspect.isgenerator(result):
        result.close()
        raise _not_run(func, "has returned a generator")
    if inspect.isasyncgen(result):
        # It has not begun, so there is nothing to close.
        raise _not_run(func, "has returned an asynchronous generator")
    return result


def _not_run(func: Any, what: str) -> TypeError:
    while isinstance(func, functools.partial):
        func = func.func
    name = getattr(func, "__qualname__", type(func).__qualname__)
    return TypeError(
        f"elastic_node.elastic.run: {name} {what}, whose body does not run by the call: give a function that trains before it "
        "returns, with asyncio.run(…) or the loop over the generator in it"
    )
