"""The ``mprm`` command."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.cli.arguments import as_json as as_json, parsed as parsed
    from mprm.cli.main import Program as Program, run as run
    from mprm.cli.tables import show_table as show_table

__getattr__ = lazy_exports(__name__)
