"""What stands in front of a program's functions is not seen where the program shows its own lines."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from allranks.rank import stack


def warns(number: int) -> int:
    """Warns about the line of its caller."""
    warnings.warn("from here", stacklevel=2)
    return number


@stack.wraps(warns)
def watched(*args: Any) -> Any:
    return between(*args)


@stack.uncounted
def between(*args: Any) -> Any:
    return warns(*args)


def test_a_warning_keeps_the_line_it_is_about() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        number = watched(sys._getframe().f_lineno)
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, number)]


def test_a_wrapper_is_called_like_what_it_wraps_and_known_as_the_guests() -> None:
    assert (watched.__name__, watched.__doc__) == ("warns", warns.__doc__)
    assert stack.describe(watched.__code__).owner == stack.GUEST
    assert stack.describe(warns.__code__).owner != stack.GUEST
