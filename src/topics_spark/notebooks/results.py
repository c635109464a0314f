"""The result of a query in a notebook: a table to look at, for Arrow, pandas and polars, and a plot."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from topics_spark.errors import ConnectorError

SHOWN_ROWS_MAX: Final = 50
CELL_CHARS_MAX: Final = 200


class QueryResult:
    """Rows in memory, as an Arrow table."""

    def __init__(self, table: Any, engine: str, spent_s: float) -> None:
        self._table = table
        self.engine = engine
        self.spent_s = spent_s

    def __len__(self) -> int:
        return self._table.num_rows

    @property
    def columns(self) -> list[str]:
        return self._table.column_names

    def rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def arrow(self) -> Any:
        return self._table

    def pandas(self) -> Any:
        """A DataFrame of pandas, which must be installed."""
        needed("pandas")
        return self._table.to_pandas()

    def polars(self) -> Any:
        """A DataFrame of polars, which must be installed."""
        return needed("polars").from_arrow(self._table)

    def plot(self, x: str | None = None, y: str | None = None, kind: Literal["line", "bar", "scatter"] = "line") -> Any:
        """Matplotlib's axes, with `y` over `x`: by default, the second column over the first one."""
        if x is None and y is None and len(self.columns) < 2:
            raise ConnectorError("a plot needs two columns; this result has one")
        x = x or self.columns[0]
        y = y or next(name for name in self.columns if name != x)
        axes = needed("matplotlib.pyplot").subplots()[1]
        draw = {"line": axes.plot, "bar": axes.bar, "scatter": axes.scatter}[kind]
        draw(self._table.column(x).to_pylist(), self._table.column(y).to_pylist())
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return axes

    def __repr__(self) -> str:
        rows = "row" if len(self) == 1 else "rows"
        return f"{len(self)} {rows} after {self.spent_s:.1f} s ({self.engine})"

    def _repr_html_(self) -> str:
        shown = self._table.slice(0, SHOWN_ROWS_MAX)
        rows = zip(*(column.to_pylist() for column in shown.columns), strict=True)
        more = f", of which these are the first {SHOWN_ROWS_MAX}" if len(self) > SHOWN_ROWS_MAX else ""
        return html_table(self.columns, rows, f"{self!r}{more}")


def needed(module: str) -> Any:
    """A library that is not part of any extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise ConnectorError(f"{name} is not installed: %pip install {name}") from None


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """Everything that comes from records is escaped: a notebook would run scripts."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{html.escape(caption)}</p>"


def cell(value: Any) -> str:
    match value:
        case None:
            return "<i>NULL</i>"
        case datetime():
            text = value.isoformat(sep=" ", timespec="milliseconds")
        case _:
            text = str(value)
    return html.escape(text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…")
