"""The form of a row."""

from __future__ import annotations

from dataclasses import dataclass

from ..values import Kind


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call does.

    `act` names how the result comes about:
      collective  the ranks communicate; the argument `target` is then of `kind` on all ranks (in place)
      lanes       the value of the lane's attribute `lane` ("rank", "local_rank", "world_size", ...)
      make        a new object of kind `make`
      pass        the argument `target` itself
      like        something that differs between ranks as the arguments do
      value       an unknown that differs as `kind` says
      and others that only one row uses, each a method of the machine.
    `event` is the kind under which the call is recorded (empty: not). `params` are the names of its positional
    parameters, and of the fields of an object it makes. `hidden` says what communicates when the call's own name
    does not say so. `cause` says why a value of kind DATA differs.
    """

    act: str = "like"
    event: str = ""
    params: tuple[str, ...] = ()
    make: str = ""
    kind: Kind = Kind.UNIFORM
    target: str = ""
    lane: str = ""
    hidden: str = ""
    cause: str = ""
    operation: str = ""
