"""One Spark session for many tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.lake import Lake, lake_of
from signalhub.pipeline.run import java
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.tables.create import ensure_tables
from signalhub.pipeline.tables.tables import TABLES
from tests.pipeline.command import Command, run
from tests.pipeline.lakeside import empty_table
from tests.pipeline.shop import open_shop

_HERE = Path(__file__).parent
_SETTINGS = _HERE / "spark-defaults.conf"
# All tests together need more room for classes and compiled code than a command, and collecting
# garbage less often saves a tenth of the time.
_JAVA = "-XX:ReservedCodeCacheSize=192m -XX:MetaspaceSize=256m -Xmn700m"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Spark can be chosen, and may take longer than others."""
    for item in items:
        if _HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", name="java")
def java_found() -> None:
    if problem := java.problem():
        pytest.skip(problem)


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """A brief one: hardly any code runs so often that optimizing it pays off."""
    with pytest.MonkeyPatch.context() as patch:
        # A folder of settings would be part of the class path, and the class archive not be used.
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {_SETTINGS} pyspark-shell")
        patch.setenv("SPARK_SUBMIT_OPTS", _JAVA)
        session = open_session("local[2]", memory="1500m", name="tests", is_brief=True)
    assert session.conf.get("spark.sql.ui.explainMode") == "simple", "its settings were not found"
    yield session
    session.stop()


@pytest.fixture(scope="session")
def empty_lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables, empty: making them takes longer than copying them."""
    path = tmp_path_factory.mktemp("lake")
    for name in TABLES:
        copytree(empty_table(spark, name), path / name)
    assert ensure_tables(spark, Lake(str(path))) == [], "they would be made once more"
    return path


@pytest.fixture
def lake(empty_lake: Path, tmp_path: Path) -> Lake:
    """The lake of the data folder `tmp_path`, with empty tables."""
    copytree(empty_lake, tmp_path / "lake")
    return lake_of(tmp_path)


@pytest.fixture(scope="session")
def shop(spark: SparkSession, empty_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a hub leaves behind, with its lake; to be read only."""
    data = tmp_path_factory.mktemp("shop") / "data"
    asyncio.run(open_shop(data))
    copytree(empty_lake, data / "lake")
    assert run("pipeline", "once", "--data", str(data)) == 0
    return data


@pytest.fixture
def command(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in this process, with its session."""
    return Command(capsys)
