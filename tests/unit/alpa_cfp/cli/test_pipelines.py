"""What can be wrong with `alpa-cfp bench --method pipeshard` ends in one line and exit code 2; nothing is planned."""

from pathlib import Path

import pytest

from alpa_cfp.cli import bench, pipelines
from alpa_cfp.cli.main import main
from alpa_cfp_bench.case import CFP, COMPOSED, ILP, ILP_AGAIN, Cluster, Pipeline
from unit.alpa_cfp.cli.test_bench import refused

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and the user's own database out of the way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "none.sqlite"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--stages 2", "--stages is for pipelines: give --method pipeshard, too"),
        ("--reports there", "--reports is for pipelines: give --method pipeshard, too"),
        ("--method pipeshard --copies 2", "--copies is not for pipelines: there is one of each"),
        ("--method pipeshard --picture a.png", "--picture is not for pipelines: it draws programs of one mesh"),
        ("--method pipeshard --save-plan a.json", "--save-plan is not for pipelines: they have many plans, which"),
        ("--method pipeshard --stages some", "'some' is no number of stages: --stages takes 1, 2, ... or auto"),
        ("--method pipeshard --stages 0", "'0' is no number of stages"),
        ("--method pipeshard --stages 4 --pipeline-layers 2", "2 layers cannot make 4 stages: give more --pipeline-"),
        (
            "--method pipeshard --methods zero2",
            "'zero2' does not plan pipelines: of --methods, cfp, alpa-ilp, alpa-ilp-again, "
            "dp-pipeline, inter-op-only do",
        ),
        (
            "--method pipeshard --stage-costs compose",
            "--stage-costs says by what alpa chooses stages: give --stages auto, too",
        ),
        (
            "--method pipeshard --stages auto --stage-costs both",
            "--stage-costs both needs --ray: candidate stages are timed on the meshes of a Ray cluster. "
            "--stage-costs compose does without",
        ),
        (
            "--method pipeshard --stages auto --methods alpa-ilp",
            "--stages auto with alpa-ilp needs --ray: candidate stages are timed on the meshes of a Ray cluster. "
            "Say how many --stages, or --methods cfp",
        ),
        (
            "--method pipeshard --ray local --costs estimate",
            "--costs estimate runs nothing to price stages by: give --stage-costs compose, too",
        ),
        ("--method pipeshard --reports absent/there", "--reports absent/there is no folder to write into: name one of"),
        (
            "--method pipeshard --mesh 1x4 --stages 2 --pipeline-layers 4 --methods inter-op-only",
            "inter-op-only makes as many stages as devices, 4: give --pipeline-layers 4 or more, and --stages auto or "
            "4",
        ),
        (
            "--method pipeshard --mesh 1x4 --stages 3",
            "3 stages cannot have equal submeshes of 1 x 4 devices: a stage has whole hosts, or a part of one",
        ),
    ],
)
def test_wrong_use_of_pipelines_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(f"bench {words}", capsys).startswith(f"alpa-cfp bench: {message}")


def test_an_unknown_schedule_is_answered_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--method", "pipeshard", "--schedule", "inference"])
    assert ended.value.code == 2
    assert "'1f1b', 'gpipe', '1f1b_overlap_friendly'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "on_cluster", "pipeline", "methods"),
    [
        ("", False, Pipeline(2, 2, "1f1b"), [CFP, ILP]),
        ("", True, Pipeline(6, None, "1f1b"), [CFP, COMPOSED, ILP]),
        ("--stages auto", False, Pipeline(6, None, "1f1b"), [COMPOSED]),
        ("--stages auto --stage-costs profile", True, Pipeline(6, None, "1f1b"), [CFP, ILP]),
        ("--stages 4 --pipeline-layers 8 --schedule gpipe", True, Pipeline(8, 4, "gpipe"), [CFP, ILP]),
        ("--methods alpa-ilp cfp --stage-costs compose", True, Pipeline(6, None, "1f1b"), [ILP, COMPOSED]),
        ("--stages 2 --methods alpa-ilp alpa-ilp-again", False, Pipeline(2, 2, "1f1b"), [ILP, ILP_AGAIN]),
    ],
)
def test_what_is_not_said_depends_on_where_the_pipelines_are(
    words: str,
    on_cluster: bool,
    pipeline: Pipeline,
    methods: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[object] = []

    def note(arguments: object, case: object, cluster: object, wrong_result: int) -> int:
        found.append(pipelines.read_pipeline(arguments, case, cluster))  # pyright: ignore[reportArgumentType]
        found.append(pipelines.read_methods(arguments, found[0], cluster))  # pyright: ignore[reportArgumentType]
        return 0

    monkeypatch.setattr(pipelines, "run", note)
    monkeypatch.setattr(bench, "read_cluster", lambda *_: Cluster("10.0.0.1:6379") if on_cluster else None)
    assert main(["bench", "--method", "pipeshard", "--size", "layers=6", *words.split()]) == 0
    assert found == [pipeline, methods]
