"""Envs of Gymnasium that a config names. A config may come from elsewhere, so it never decides what code is run: the
module that registers an env must be installed, or imported already."""

import json
import site
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import gymnasium
import numpy as np
from gymnasium import spaces

from leeward.config.tune import GymConfig
from leeward.errors import ConfigError, one_line

__all__ = ["check_gym", "make_gym"]

# What the code of an env raises when it is made: it is not ours, and each of them is an answer to `gym.kwargs`.
_REFUSED = (gymnasium.error.Error, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError,
            RuntimeError, TypeError, ValueError)  # fmt: skip
_ACTIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_SEEN = (*_ACTIONS, spaces.Dict)


def check_gym(gym: GymConfig) -> None:
    """An env that Gymnasium does not know, cannot make or cannot step is an error that says why."""
    module, _, name = gym.id.rpartition(":")  # "package.module:Name-v0": the module that registers it
    if ":" in gym.id:
        _import_installed(module)
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        near = get_close_matches(name[:100], gymnasium.registry, n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"{one_line(error)}; name the module that registers it: package.module:{name:.100}"
        )
        raise ConfigError(f"gym.id: Gymnasium knows no {gym.id[:100]!r}; {hint}") from None
    done = "made"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training says them
            env = make_gym(gym)
            done = "reset"
            env.reset(seed=0)
            done = "stepped"
            env.action_space.seed(0)
            env.step(_any_action(env))
            done = "closed"
            env.close()
    except _REFUSED as error:
        remedy = "install what it needs" if done == "made" else "mend the env"
        raise ConfigError(
            f"gym: {gym.id} cannot be {done} with {gym.kwargs!r:.200} ({type(error).__name__}: {one_line(error)}); "
            f"change gym.kwargs, or {remedy}"
        ) from error
    for what, space, known in (("observes", env.observation_space, _SEEN), ("acts in", env.action_space, _ACTIONS)):
        if not isinstance(space, known):
            raise ConfigError(
                f"gym: {gym.id} {what} {type(space).__name__}; expected one of "
                f"{', '.join(kind.__name__ for kind in known)}: wrap the env"
            )


def make_gym(gym: GymConfig) -> gymnasium.Env:
    """One env of its own, of those that `check_gym` has let pass."""
    return gymnasium.make(gym.id.rpartition(":")[2], **gym.kwargs)


def _any_action(env: gymnasium.Env) -> Any:
    """One that the env allows, as training takes them."""
    space = env.action_space
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or not env.has_wrapper_attr("action_masks"):
        return space.sample()
    mask = np.ravel(env.get_wrapper_attr("action_masks")()).astype(np.int8)
    if isinstance(space, spaces.Discrete):
        return space.sample(mask=mask)
    return space.sample(mask=tuple(np.split(mask, np.cumsum(np.ravel(space.nvec))[:-1])))


def _import_installed(module: str) -> None:
    if module in sys.modules:
        return
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"gym.id: expected package.module:Name-v0, and {module[:100]!r} is no name of a module")
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)  # which imports nothing
    except ValueError:
        spec = None
    if spec is None:
        raise ConfigError(f"gym.id: no module {top!r} is installed; install the package that registers the env")
    found = [spec.origin] if spec.origin is not None else [*(spec.submodule_search_locations or ())]
    folders = [*_folders()]
    for place in map(Path, found):
        # The folder that the import system was given: of a package it lies above its own.
        if not any(_above(place, top).resolve() == folder for folder in folders):
            raise ConfigError(
                f"gym.id: {module!r} would be run from {place}, which is not of an installed package; a config runs "
                "no code that merely lies there: install it (pip install -e), or import it before Leeward is called"
            )
    try:
        import_module(module)
    except _REFUSED as error:
        raise ConfigError(
            f"gym.id: {module!r} cannot be imported ({type(error).__name__}: {one_line(error)})"
        ) from error


def _above(place: Path, top: str) -> Path:
    """The folder that holds a top-level module, by its file, or by its folder where it has no `__init__`."""
    return place.parent.parent if place.parent.name == top and place.stem == "__init__" else place.parent


def _folders() -> Iterator[Path]:
    """Where packages are installed, and the sources of those that were installed to be edited."""
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        own.add(site.getusersitepackages())
    yield from (Path(folder).resolve() for folder in own)
    for package in distributions(path=sorted(own)):
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            root = Path(unquote(urlparse(origin["url"]).path)).resolve()
            yield from (root, root / "src")
