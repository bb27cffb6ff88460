"""The documents speak of code that exists."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", re.findall(r"`(gfunk(?:\.\w+)+)`", (ROOT / "docs" / "equations.md").read_text()))
def test_every_function_named_beside_an_equation_exists(name: str):
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute)


def test_every_command_in_the_readme_is_one_of_the_program():
    from gfunk.cli import main

    commands = set(re.findall(r"^gfunk (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert commands
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0


def test_the_python_examples_in_the_readme_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    operator, wave, atrium = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    scope: dict[str, Any] = {}
    exec(operator, scope)
    assert scope["error"] < 0.02
    exec(wave, scope)
    assert 10 < scope["wave"].activation_ms.max() < 30
    exec(atrium, scope)
    assert scope["wave"].values_mV.shape[2] == scope["atrium"].n_nodes
