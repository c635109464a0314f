"""Output formats: a table to look at, CSV, NDJSON or one Parquet file; to standard output, or to a file at once."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from topics.cli.failure import CommandFailed
from topics.cli.output import say, write_out

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Form = Literal["table", "csv", "json", "parquet"]
ENDINGS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
TABLE_ROWS_MAX: Final = 1_000
CELL_CHARS_MAX: Final = 100
BUFFER_LINES: Final = 2_000
NOTHING: Final = "NULL"

Write = Callable[[bytes], object]


def form_for(wished: Form | None, out: Path | None, *, on_terminal: bool) -> Form:
    """The given format; else by the name of the file; else a table for people, and JSON for programs."""
    if wished is not None:
        if wished == "parquet" and out is None and on_terminal:
            raise CommandFailed("a terminal cannot show Parquet; name a file with --out, or redirect the output")
        return wished
    if out is not None:
        found = ENDINGS.get(out.suffix.lower())
        if found is None:
            known = ", ".join(ENDINGS)
            raise CommandFailed(f"--out {out}: give the format with -o, or end the name in {known}")
        return cast("Form", found)
    return "table" if on_terminal else "json"


def deliver(rows: DataFrame, form: Form, out: Path | None, before_output: Callable[[], None]) -> int:
    """Run the query and write its rows; how many there were. `before_output` is called before the first ones."""
    if form == "parquet":
        return _deliver_parquet(rows, out)
    if out is None:
        return _deliver_lines(rows, form, _first(before_output, write_out))
    with written_aside(out) as aside, aside.open("wb") as file:
        return _deliver_lines(rows, form, file.write)


def say_count(count: int, out: Path | None, spent_s: float, engine: str) -> None:
    """The line after the rows: how many, where, and who found them."""
    # The rows come before messages about them, also on the same terminal.
    sys.stdout.flush()
    where = f" in {out}" if out is not None else ""
    say(f"{count} {'row' if count == 1 else 'rows'}{where} after {spent_s:.1f} s ({engine})")


def _first(before: Callable[[], None], write: Write) -> Write:
    def write_after(data: bytes) -> None:
        before()
        write(data)

    return write_after


def _deliver_lines(rows: DataFrame, form: Form, write: Write) -> int:
    match form:
        case "csv":
            write(csv_line(rows.columns))
            return _deliver_texts(_as_csv(rows), write)
        case "json":
            return _deliver_texts(_as_json(rows), write)
        case _:
            return _deliver_table(rows, write)


@contextlib.contextmanager
def written_aside(out: Path) -> Generator[Path]:
    """A temporary name nearby that is renamed when all is written, so that the file is never incomplete."""
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        yield aside
        os.replace(aside, out)
    except OSError as error:
        raise CommandFailed(f"--out {out}: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)


# --- lines, made by Spark ---


def _deliver_texts(texts: DataFrame, write: Write) -> int:
    lines = cast("Iterator[Any]", texts.toLocalIterator(prefetchPartitions=True))
    count = 0
    while piece := [row[0] for row in islice(lines, BUFFER_LINES)]:
        write(("\n".join(piece) + "\n").encode("utf-8", "surrogatepass"))
        count += len(piece)
    return count


def _as_json(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import struct, to_json

    named = rows.toDF(*distinct(rows.columns))
    return named.select(to_json(struct("*"), {"ignoreNullFields": "false"}))


def _as_csv(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import struct, to_csv

    # Otherwise Spark leaves out the blanks at both ends of a text.
    blanks = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    return _as_texts(rows).select(to_csv(struct("*"), {"escape": '"', **blanks}))


def _as_texts(rows: DataFrame) -> DataFrame:
    """Every column in a form that a cell can have. Columns may share a name, so they are numbered."""
    from pyspark.sql.functions import base64, col, to_json
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

    places = [f"c{place}" for place in range(len(rows.columns))]
    found: list[Column] = []
    for place, field in zip(places, rows.schema.fields, strict=True):
        match field.dataType:
            case StructType() | ArrayType() | MapType() | VariantType():
                text = to_json(col(place))
            case BinaryType():
                text = base64(col(place))
            case _:
                text = col(place)
        found.append(text.alias(place))
    return rows.toDF(*places).select(*found)


def distinct(names: Sequence[str]) -> list[str]:
    """JSON keeps only one of two keys with the same name: the second one gets a number."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def csv_line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


# --- a table ---


def _deliver_table(rows: DataFrame, write: Write) -> int:
    """Widths are known only with all rows, so it shows at most TABLE_ROWS_MAX, and says if there are more."""
    from pyspark.sql.types import NumericType

    texts = _as_texts(rows)
    texts = texts.select(*(texts[name].cast("string") for name in texts.columns))
    found = cast("list[Sequence[str | None]]", texts.limit(TABLE_ROWS_MAX + 1).collect())
    right = [isinstance(field.dataType, NumericType) for field in rows.schema.fields]
    write(table(rows.columns, found[:TABLE_ROWS_MAX], right).encode("utf-8", "replace"))
    if len(found) > TABLE_ROWS_MAX:
        say(f"these are the first {TABLE_ROWS_MAX} rows; -o csv, json or parquet gives all of them")
    return min(len(found), TABLE_ROWS_MAX)


def table(head: Sequence[str], rows: Sequence[Sequence[str | None]], right: Sequence[bool]) -> str:
    """Aligned columns, numbers to the right, with the width of a terminal's characters."""
    from rich.cells import cell_len

    lines = [[shown(cell) for cell in row] for row in [head, *rows]]
    widths = [max(cell_len(line[place]) for line in lines) for place in range(len(head))]

    def joined(cells: Sequence[str]) -> str:
        placed: list[str] = []
        for cell, width, to_right in zip(cells, widths, right, strict=True):
            blank = " " * (width - cell_len(cell))
            placed.append(blank + cell if to_right else cell + blank)
        return "  ".join(placed).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "".join(f"{line}\n" for line in [joined(lines[0]), rule, *map(joined, lines[1:])])


def shown(cell: str | None) -> str:
    """Safe to print: control characters are escaped, and long texts are cut."""
    if cell is None:
        return NOTHING
    if len(cell) > CELL_CHARS_MAX:
        cell = f"{cell[: CELL_CHARS_MAX - 1]}…"
    return cell if cell.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in cell)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


# --- Parquet ---


def _deliver_parquet(rows: DataFrame, out: Path | None) -> int:
    """Spark writes as many files as it has tasks, next to the one that is made from them."""
    check_distinct(rows.columns)
    folder = out.parent if out is not None else _scratch()
    parts = folder.absolute() / f".topics-sql-{uuid.uuid4().hex}"
    try:
        rows.write.parquet(parts.as_uri())
        target = out or parts / "_whole"
        with written_aside(target) as aside:
            count = _merged(sorted(parts.glob("*.parquet")), aside)
        if out is None:
            with target.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return count


def check_distinct(names: Sequence[str]) -> None:
    twice = {name for name in names if [each.lower() for each in names].count(name.lower()) > 1}
    if twice:
        raise CommandFailed(
            f"Parquet cannot have two columns with one name; rename with AS: {', '.join(sorted(twice))}"
        )


def _scratch() -> Path:
    import tempfile

    return Path(tempfile.gettempdir())


def _merged(parts: Sequence[Path], whole: Path) -> int:
    import pyarrow.parquet as parquet

    count = 0
    with parquet.ParquetWriter(whole, parquet.read_schema(parts[0]).remove_metadata()) as writer:
        for part in parts:
            with parquet.ParquetFile(part) as file:
                for batch in file.iter_batches():
                    count += batch.num_rows
                    writer.write_batch(batch.replace_schema_metadata(None))
    return count
