"""`__all__` is the public surface of every module, and the drawn exception tree is the real one."""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import leeward
from leeward import errors

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("name", [module for module in MODULES if module != "leeward"])
def test_all_names_what_a_module_offers(name):
    try:
        module = import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("ray", "optuna"):
            raise
        pytest.skip(f"{missing.name} is not installed: make ray")
    defined = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == name
    }
    if not defined and not hasattr(module, "__all__"):
        return  # a package that holds modules only
    exported = module.__all__
    assert len(exported) == len(set(exported))
    assert [key for key in exported if not hasattr(module, key)] == []
    assert sorted(defined - set(exported)) == []


def test_the_lazy_names_of_the_package_lead_somewhere():
    assert sorted(leeward._LAZY) == sorted(set(leeward.__all__) - {"__version__"})
    for name, module in leeward._LAZY.items():
        # A chain whose package is not there yet has nothing to offer.
        if (SOURCE / Path(*module.split(".")).with_suffix(".py")).exists():
            assert find_spec(module) is not None
            assert getattr(leeward, name).__name__ == name


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'leeward' has no attribute 'DistributionalDQN'"):
        leeward.DistributionalDQN  # noqa: B018


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """The tree in the docstring of errors.py: class -> (its parent, the built-in it also is)."""
    drawn: dict[str, tuple[str | None, str | None]] = {}
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│ ]*(?:[├└]── )?)([A-Z]\w+)(?: \(also an? (\w+)\))?(?:\s|$)", line)
        if match is None or not (match[1] or match[2] == "LeewardError"):
            continue
        depth = len(match[1]) // 4
        del parents[depth:]
        drawn[match[2]] = (parents[-1] if parents else None, match[3])
        parents.append(match[2])
    return drawn


def test_the_drawn_exception_tree_is_the_real_one():
    real = {}
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.LeewardError):
            ours = [base.__name__ for base in value.__bases__ if issubclass(base, errors.LeewardError)]
            builtin = [base.__name__ for base in value.__bases__ if not issubclass(base, errors.LeewardError)]
            real[name] = (ours[0] if ours else None, builtin[0] if ours and builtin else None)
    assert drawn_tree() == real
    assert set(real) == set(errors.__all__) - {"did_you_mean", "one_line", "printable"}


def test_a_missing_extra_says_what_to_install():
    error = errors.MissingExtra("ray", "ray", "population-based training")
    assert str(error) == "population-based training needs the package 'ray': pip install 'leeward[ray]'"
    assert isinstance(error, ImportError)
