"""The documents: every relative link leads somewhere, every page is in the site, the reference names everything."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import vitreous
from vitreous.config.schema import DataConfig, MixerConfig, TrainConfig, ViTConfig
from vitreous.studies.definition import bundled_studies

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "reference" not in path.parts and "_build" not in path.parts)
GENERATED = {f"reference/{name}" for name in ("commands", "settings", "python", "paper")} | {
    f"reference/notebooks/{path.stem}" for path in (DOCS.parent / "notebooks").glob("*.ipynb")
}


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_relative_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to a heading that {file.name} does not have: {target}"


def listed(page: Path) -> set[Path]:
    """Return the pages that the toctrees of a page name, and those that these name."""
    found = set()
    for block in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line and not line.startswith(":") and line not in GENERATED:
                matched = list(page.parent.glob(f"{line}.md"))
                assert matched or "*" in line, f"{page.name} lists {line}, which does not exist"
                found |= set(matched) - {page}
    return found.union(*(listed(each) for each in found if each.name == "index.md"))


def test_every_page_is_in_the_site():
    assert set(PAGES) == listed(DOCS / "index.md") | {DOCS / "index.md"}


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_setting_and_name(generator):
    commands = generator.commands_page()
    assert all(f"## `{name}`" in commands for name, _ in generator.commands())
    assert "| `--quick` | A small version" in commands
    settings = generator.settings_page()
    for prefix, config in (("model", ViTConfig), ("model", MixerConfig), ("data", DataConfig), ("train", TrainConfig)):
        own = [name for name in config.model_fields if name in config.__annotations__]
        assert all(f"| `{prefix}.{name}` |" in settings for name in own)
    assert "keep only this many training images per class" in settings
    assert "| `model.pool` | `cls`, `mean`, `seq` | `cls` |" in settings
    functions = generator.functions_page()
    assert all(f"## `vitreous.{name}`" in functions for name in vitreous.__all__ if name != "__version__")
    assert "| `.predict(images)` |" in functions
    for page in (commands, settings, functions):
        tables = [line for line in page.splitlines() if line.startswith("|")]
        assert all(len(re.findall(r"(?<!\\)\|", line)) in (3, 4, 5) for line in tables), "a cell breaks its table"


def test_the_page_of_studies_names_each():
    text = (DOCS / "studies.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in bundled_studies())


def test_the_example_study_of_the_page_is_valid(tmp_path):
    from vitreous.studies.definition import load_study
    from vitreous.studies.jobs import make_jobs, quickly

    (example,) = re.findall(r"^```toml\n(.*?)^```", (DOCS / "studies.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    study = load_study(tmp_path / "mine.toml")
    assert len(make_jobs(study, tmp_path)) == 18
    assert len(make_jobs(quickly(study), tmp_path, quick=True)) == 8
