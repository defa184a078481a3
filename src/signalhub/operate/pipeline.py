"""The pipeline of a data folder, opened with its lock and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from signalhub.operate.lake import check_log
from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run.lock import lock_pipeline
from signalhub.pipeline.run.status import announced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.pipeline.land.land import Landed
    from signalhub.pipeline.run.run import Pipeline
    from signalhub.settings.model import Settings


@contextmanager
def open_pipeline(
    settings: Settings,
    *,
    landed: Callable[[Landed], None] = lambda batch: None,
    beside: int | None = None,
    is_single_run: bool = False,
) -> Iterator[Pipeline]:
    """Open the pipeline while the block runs; its `once`, `up` and `maintain` do the work.

    `landed` is called after every micro-batch. In a single run (`is_single_run`) Spark starts when
    it is needed, and faster if little is left to do. `beside` is the process id of the hub, which
    has precedence on this machine.
    Raises `PipelineRunning` if another pipeline works on the data folder, and `InvalidArgument` if
    it has no log.
    """
    check_log(settings)
    with closing(lock_pipeline(settings.data)), announced(Path(settings.data)):
        from signalhub.pipeline.run.progress import is_nearly_done
        from signalhub.pipeline.run.run import Pipeline
        from signalhub.pipeline.run.schedule import neighbour
        from signalhub.pipeline.run.spark import session

        chosen, data = settings.pipeline, Path(settings.data)
        master = chosen.master or ("local[*]" if beside is None else "local[1]")
        is_for_spark = chosen.spark == "always"
        lake = lake_of(settings.data, chosen.lake, is_for_spark=is_for_spark)
        hub = neighbour(beside)
        with ExitStack() as stack:

            def spark() -> SparkSession:
                is_brief = is_single_run and is_nearly_done(data, chosen.lake)
                opened = session(master, memory=chosen.memory, is_brief=is_brief, data=data)
                return stack.enter_context(opened)

            opening = spark if is_single_run and not is_for_spark else spark()
            yield Pipeline(opening, lake, data, chosen, landed=landed, hub=hub)
