"""`signalhub admin-reader`: the process in which a hub reads disk and lake for its dashboard.

Only hubs start it. It ends with the hub, because the hub's end of the socket does.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.failures import Exit
from signalhub.observe.logs import Format, Level


def admin_reader(
    *,
    socket: Annotated[int, Parameter(validator=Number(gte=0), help="A socket to the hub.")],
    data: Annotated[Path, Parameter(help="The hub's data folder.")],
    lake: Annotated[str | None, Parameter(help="Where the tables are; empty: beside.")] = None,
    log_level: Annotated[Level, Parameter(help="As in the settings of the hub.")] = "info",
    log_format: Annotated[Format, Parameter(help="As in the settings of the hub.")] = "auto",
) -> int:
    """Answer questions of the hub that started this about its log and lake."""
    from signalhub.observe import logs
    from signalhub.server.history.reader import process

    logs.configure(log_level, log_format)
    # Ctrl-C in the terminal of the hub is the hub's business.
    with contextlib.suppress(KeyboardInterrupt):
        process.run(socket, data, lake)
    return Exit.DONE
