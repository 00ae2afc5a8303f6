"""Python imports this at start because the host put its folder first on PYTHONPATH. It starts the guest and then
gives way to the sitecustomize that it hides. It runs in every interpreter below the command, of any version, so
it is written for Python 2.7 as well."""

import os
import sys


def _start():
    # type: () -> None
    if sys.version_info < (3, 8) or not os.environ.get("ALLRANKS_SOCKET"):
        return
    try:
        from importlib import import_module
        from importlib.util import module_from_spec, spec_from_file_location

        # A private name: the tool need not be installed here, and a user's own `allranks` or `rank` stays theirs.
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        name = "_allranks_guest"
        if name in sys.modules:  # a host within a host: one guest is enough
            return
        spec = spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        import_module(name + ".start").boot()
    except Exception:  # a recorder that fails must not be noticed
        pass


def _give_way():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    hidden = [p for p in sys.path if os.path.abspath(p) != here]
    if not any(
        os.path.exists(os.path.join(p, "sitecustomize.py"))
        or os.path.exists(os.path.join(p, "sitecustomize"))
        for p in hidden
    ):
        return
    mine, path = sys.modules.pop("sitecustomize", None), sys.path[:]
    try:
        sys.path[:] = hidden
        __import__("sitecustomize")
    finally:
        if sys.path == hidden:
            sys.path[:] = path
        if "sitecustomize" not in sys.modules and mine is not None:
            sys.modules["sitecustomize"] = mine


_start()
_give_way()
