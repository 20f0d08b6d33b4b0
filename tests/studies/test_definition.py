"""Studies as files: those of the package are valid and complete, and a user's mistake is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitreous.errors import ConfigError, VitreousError
from vitreous.studies.definition import GridStudy, TransferStudy, bundled_studies, load_study
from vitreous.studies.jobs import make_jobs, quickly

NAMES = (
    "article", "attention-or-mixing", "data-size", "depth-width", "design", "order", "patch-size", "positions",
    "token-or-mean", "transfer",
)  # fmt: skip

MINE = """
name = "mine"
title = "Is deeper better?"
claim = "Deeper is better."
source = "me"
settings = ["train.epochs=1"]

[[arms]]
name = "shallow"
settings = ["model.depth=1"]

[[arms]]
name = "deep"
settings = ["model.depth=2"]

[[verdict]]
claim = "deep is better"
arm = "deep"
against = "shallow"
expect = "better"

[quick]
how = "less of it"
settings = ["train.epochs=0.1"]
"""
POINTS = '[points]\nlabel="x"\nsettings=["seed={}"]\n'


def test_the_package_has_these_studies():
    assert tuple(bundled_studies()) == NAMES
    assert all(load_study(name).name == name for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "transfer"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_run_of_a_study_has_a_valid_configuration_and_a_folder_of_its_own(name, quick):
    study = load_study(name)
    assert isinstance(study, GridStudy)
    asked = quickly(study) if quick else study
    jobs = make_jobs(asked, Path("out"), quick=quick)
    assert len({job.path for job in jobs}) == len(jobs)
    different = {job.config.replace(name="x", seed=0).model_dump_json() for job in jobs}
    assert len(different) >= len(jobs) / asked.seeds, "two arms would train the same model"
    assert {job.config.train.threads for job in jobs} == {1}
    assert asked.verdict, "quick leaves something to decide"
    assert all(job.work > 0 for job in jobs)
    if quick:
        full = make_jobs(study, Path("out"))
        assert sum(job.work for job in jobs) < 0.3 * sum(job.work for job in full)


def test_quick_keeps_what_can_be_decided():
    study = quickly(load_study("patch-size"))
    assert study.points.values == (4, 7, 14, 28)
    assert [check.at for check in study.verdict] == [(4,), (14, 28), (4,), (), (4,)]
    sizes = quickly(load_study("data-size")).points
    assert (sizes.values, sizes.names, sizes.positions) == (
        (10, 100, 1000), ("100", "1,000", "10,000"), (100.0, 1000.0, 10000.0)
    )  # fmt: skip


def test_settings_apply_in_order(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        MINE.replace('settings = ["model.depth=2"]', 'settings = ["model.depth=2"]\nquick = ["seed=9", "train.lr=0.5"]')
    )
    study = load_study(file)
    full = make_jobs(study, tmp_path)
    assert [(job.config.model.depth, job.config.train.epochs, job.seed) for job in full[:2]] == [(1, 1, 0), (2, 1, 0)]
    shallow, deep = make_jobs(quickly(study), tmp_path, quick=True, settings=["model.dim=32"])[2:]
    assert (shallow.config.train.lr, deep.config.train.lr, deep.config.train.epochs) == (0.01, 0.5, 0.1)
    assert (deep.config.model.dim, deep.config.seed, shallow.config.seed) == (32, 1, 1)
    with pytest.raises(ConfigError, match=r"no setting 'model.dept'"):
        make_jobs(study, tmp_path, settings=["model.dept=3"])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('source = "me"', "", r"'source' is missing; docs/studies.md"),
        ('source = "me"', 'sources = "me"', r"'source' is missing"),
        ('source = "me"', 'source = "me"\ncolour = 3', r"a study has no field 'colour'"),
        ('arm = "deep"', 'arm = "deeep"', r"there is no 'deeep'; did you mean 'deep'\? choose from shallow, deep"),
        ('name = "deep"', 'name = "shallow"', r"two arms are called 'shallow'"),
        ('name = "mine"', 'name = "Mine!"', r"name='Mine!': string should match pattern"),
        ('expect = "better"', 'expect = "good"', r"verdict.0.expect='good': input should be 'better', 'worse'"),
        ('against = "shallow"', "", r"name what 'deep' is compared with"),
        ('name = "shallow"', 'name = "shallow"\npreset = "vitt"', r"preset: there is no 'vitt'; did you mean 'vit'\?"),
        ('name = "shallow"', 'name = "shallow"\nsame_runs = "dep"', r"there is no 'dep'; did you mean 'deep'\?"),
        ('name = "shallow"', 'name = "shallow"\neval_batch_size = 1', r"eval_batch_size is for arms with same_runs"),
        ('expect = "better"', 'expect = "crossing"', r"a crossing needs \[points\] and two arms"),
        ("[quick]", f'{POINTS}values=["a","b"]\nscale="log"\n[quick]', r"points.scale='log' needs numbers"),
        ("[quick]", f'{POINTS}values=[1,2]\nnames=["a"]\n[quick]', r"points.names needs as many entries"),
        ('how = "less of it"', 'how = "less of it"\narms = ["deepest"]', r"quick.arms: there is no 'deepest'"),
        ('name = "mine"', 'kind = "grit"\nname = "mine"', r"kind='grit': choose grid or transfer"),
        ('name = "mine"', "name = ", r"cannot read the configuration"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path, old, new, sentence):
    file = tmp_path / "mine.toml"
    assert MINE.count(old) >= 1
    file.write_text(MINE.replace(old, new, 1))
    with pytest.raises(VitreousError, match=sentence) as caught:
        load_study(file)
    assert "\n" not in str(caught.value)


def test_unknown_studies_are_refused_with_a_hint():
    with pytest.raises(
        ConfigError, match=r"no study 'orders'; did you mean 'order'\? choose from article, .* my-study.toml"
    ):
        load_study("orders")
    with pytest.raises(ConfigError, match=r"cannot read the configuration '/nowhere/x.toml'"):
        load_study("/nowhere/x.toml")
    assert isinstance(load_study("transfer"), TransferStudy)


def test_arms_that_would_share_a_folder_are_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(MINE.replace('"deep"', '"Shallow!"').replace('name = "shallow"', 'name = "shallow"'))
    with pytest.raises(ConfigError, match=r"would share the folder 'shallow-seed0': rename one"):
        make_jobs(load_study(file), tmp_path)
