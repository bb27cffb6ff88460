"""The pages as a site: whole, offline, every link and name in it there; and what they tell users to run runs."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gfunk

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def built(pages: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it."""
    strictly = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--conf-dir", str(DOCS)]
    command = [sys.executable, "-m", "sphinx", *strictly, str(pages), str(out)]
    return subprocess.run(command, capture_output=True, text=True)


def blocks(page: Path, language: str) -> list[str]:
    fenced = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [code for named, code in fenced if named == language]


def commands(page: Path) -> list[str]:
    """Of our program, without remarks; a line that ends in \\ goes on."""
    code = "".join(blocks(page, "")).replace("\\\n", " ")
    return re.findall(r"^gfunk [^#\n]*", code, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    result = built(DOCS, out)
    assert result.returncode == 0, result.stderr
    return out


def test_every_page_is_on_the_site(site: Path):
    for page in DOCS.glob("*.md"):
        assert (site / f"{page.stem}.html").exists()


def test_the_site_loads_nothing_from_elsewhere(site: Path):
    pages = list(site.glob("*.html"))
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert loaded
        assert not [source for source in loaded if re.match(r"(\w+:)?//", source)], page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style.name


def test_every_public_name_is_described_on_the_site(site: Path):
    described = set(re.findall(r"id=\"gfunk\.(\w+)\"", (site / "api.html").read_text()))
    assert described == set(gfunk.__all__)


@pytest.mark.parametrize("name", gfunk.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name: str):
    thing = getattr(gfunk, name)
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    # A dataclass without one is given its signature.
    assert text and not text.startswith(f"{name}(")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[there](other.md#a-section)", None),
        ("[nowhere](another.md)", "another.md"),
        ("[no such section](other.md#another)", "another"),
        ("![no picture](picture.png)", "picture.png"),
        ("```{eval-rst}\n.. autofunction:: gfunk.nothing\n```", "nothing"),
    ],
)
def test_a_site_with_a_broken_link_is_refused(text: str, complaint: str | None, tmp_path: Path):
    toctree = "```{toctree}\nother\n```\n"
    (tmp_path / "index.md").write_text(f"# A site\n{text}\n\n{toctree}")
    (tmp_path / "other.md").write_text("# Other\n## A section\n")
    result = built(tmp_path, tmp_path / "out")
    assert (result.returncode == 0) == (complaint is None), result.stderr
    assert complaint is None or complaint in result.stderr


def test_a_page_that_no_list_names_is_refused(tmp_path: Path):
    (tmp_path / "index.md").write_text("# A site\n")
    (tmp_path / "lost.md").write_text("# Lost\n")
    result = built(tmp_path, tmp_path / "out")
    assert result.returncode != 0 and "lost.md" in result.stderr


def test_every_file_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_option_on_a_page_is_one_of_its_command(page: Path, capsys: pytest.CaptureFixture[str]):
    from gfunk.cli import main

    for command in commands(page):
        words = command.split()
        subcommand = words[2:3] if words[1] == "bench" else []
        with pytest.raises(SystemExit):
            main([words[1], *subcommand, "--help"])
        known = re.findall(r"--[\w-]+", capsys.readouterr().out)
        assert {word for word in words if word.startswith("--")} <= set(known), command


def test_the_first_prediction_is_right():
    (code,) = blocks(DOCS / "first-steps.md", "python")
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["error"] < 0.001


def test_the_way_from_a_file_to_a_picture_can_be_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gfunk.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "cache"))
    (command,) = re.findall(r"^gfunk (atrium .*)$", (DOCS / "own-heart.md").read_text(), flags=re.MULTILINE)
    main(command.split())
    scope: dict[str, Any] = {}
    for code in blocks(DOCS / "own-heart.md", "python"):
        exec(code, scope)
    assert scope["solved"].values_mV.shape[2] == scope["wave"].values_mV.shape[1] == scope["domain"].n_nodes
    assert (tmp_path / "wave.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_on_an_own_pde_is_the_example():
    """Blank lines between blocks apart."""
    told, example = "\n".join(blocks(DOCS / "own-pde.md", "python")), (ROOT / "examples" / "6_own_pde.py").read_text()
    assert [line for line in told.splitlines() if line] == [line for line in example.splitlines() if line]


def test_an_own_pde_is_learned():
    one_core = os.environ | {"OMP_NUM_THREADS": "1"}
    said = subprocess.check_output([sys.executable, ROOT / "examples" / "6_own_pde.py"], env=one_core, text=True)
    errors = {name: float(error) for name, error in re.findall(r"^(.+): ([\d.]+)$", said, flags=re.MULTILINE)}
    assert errors["diffusion alone"] > 0.3
    assert errors["learned"] < 0.04


@pytest.mark.slow
def test_the_pictures_of_the_pages_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import runpy

    monkeypatch.setenv("GFUNK_COMPILE", "0")
    runpy.run_path(str(DOCS / "pictures.py"))["arrival_picture"](tmp_path / "arrival.png")
    assert (tmp_path / "arrival.png").read_bytes().startswith(b"\x89PNG")
