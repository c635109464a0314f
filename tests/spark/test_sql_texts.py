"""`topics sql` without Spark: where statements end, what is said of errors, how rows look, and what a prompt does."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from topics.cli.failure import CommandFailed
from topics_spark.sql.error_lines import LINE_CHARS_MAX, error_line
from topics_spark.sql.formats import CELL_CHARS_MAX, csv_line, form_for, shown, table
from topics_spark.sql.prompt import FIRST, MORE, Prompt, history_file
from topics_spark.sql.query_progress import Tasks, Watcher, bar, plain
from topics_spark.sql.statements import is_blank, rest, statements

# --- statements ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\";", ["SELECT ';'", 'SELECT ";"']),
        (r"SELECT 'it\'s;'; SELECT 2", [r"SELECT 'it\'s;'", "SELECT 2"]),
        ("SELECT 'it''s;'; SELECT 2", ["SELECT 'it''s;'", "SELECT 2"]),
        ("SELECT * FROM `a;b`; SELECT 2", ["SELECT * FROM `a;b`", "SELECT 2"]),
        ("SELECT 1 -- no; end\n; SELECT 2", ["SELECT 1 -- no; end", "SELECT 2"]),
        ("SELECT /* ; */ 1; /* only; this */ ; -- and this", ["SELECT /* ; */ 1"]),
        (";;;", []),
    ],
)
def test_statements_end_at_semicolons_that_nothing_hides(text: str, found: list[str]) -> None:
    assert [statement.text.strip() for statement in statements(text)] == found


def test_only_the_last_statement_may_lack_its_end() -> None:
    assert [statement.ended for statement in statements("SELECT 1; SELECT 2")] == [True, False]


def test_a_statement_keeps_the_place_it_had_in_the_text() -> None:
    text = "SELECT 1;\n\nSELECT 2; SELECT\n  three"
    for statement, word in zip(statements(text), ("1", "2", "three"), strict=True):
        lines = statement.text.split("\n")
        at = next((line, text.index(word)) for line, text in enumerate(lines) if word in text)
        assert text.split("\n")[at[0]][at[1] :].startswith(word)


@pytest.mark.parametrize("open_text", ["SELECT 'a;", "SELECT `a;", "SELECT /* ;", "SELECT 1"])
def test_what_is_not_closed_goes_on(open_text: str) -> None:
    assert rest(f"SELECT 0;{open_text}") == open_text
    assert not any(statement.ended for statement in statements(open_text))


def test_comments_alone_say_nothing() -> None:
    assert is_blank(" -- a\n/* b */\n")
    assert not is_blank("-- a\n'--'")


# --- complaints ---


@pytest.mark.parametrize(
    ("spark_says", "line"),
    [
        (
            (
                "\n[PARSE_SYNTAX_ERROR] Syntax error at 'y': extra input 'y'. SQLSTATE: 42601 (line 1, pos 14)\n\n"
                "== SQL ==\nSELECT x FORM y\n--------------^^^\n"
            ),
            "line 1, column 15: Syntax error at 'y': extra input 'y'",
        ),
        (
            (
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] Column `x` is not known. Did you mean one of the"
                " following? [`a`, `i`]. SQLSTATE: 42703; line 3 pos 7;\n'Project ['x]\n+- Relation"
            ),
            "line 3, column 8: Column `x` is not known. Did you mean one of the following? [`a`, `i`]",
        ),
        (
            (
                '[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. If necessary set "spark.sql.ansi.enabled"'
                ' to "false" to bypass this error. SQLSTATE: 22012\n== SQL (line 2, position 8) ==\nselect 1/0\n'
            ),
            "line 2, column 8: Division by zero. Use `try_divide`",
        ),
        (
            (
                "Job aborted due to stage failure: Task 0 failed: PythonException: Traceback "
                '(most recent call last):\n  File "/a/worker.py", line 1, in main\n    process()\n'
                "topics_spark.errors.ServerFailed: no answer from http://a:1: refused\n\nJVM stacktrace:\nat x.Y: z"
            ),
            "no answer from http://a:1: refused",
        ),
        (
            (
                "An error occurred while calling o1.get.\n: org.apache.spark.SparkException: Thrown: \n\tat a.B\n"
                "Caused by: org.apache.spark.SparkException: Thrown again: \n\tat a.B\n"
                "Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero."
                " SQLSTATE: 22012\n== SQL (line 2, position 3) ==\n  1 / id FROM range(1)\n  ^^^\n\n\tat a.B\n"
            ),
            "line 2, column 3: Division by zero",
        ),
        ("", "ValueError"),
    ],
)
def test_pages_of_spark_become_a_line_with_a_place(spark_says: str, line: str) -> None:
    assert error_line(ValueError(spark_says)) == line


def test_no_complaint_is_endless() -> None:
    assert len(error_line(ValueError("x" * 10_000))) == LINE_CHARS_MAX + 1


# --- forms ---


def test_the_form_is_as_wished_or_as_the_file_or_as_the_reader() -> None:
    assert form_for(None, None, on_terminal=True) == "table"
    assert form_for(None, None, on_terminal=False) == "json"
    assert form_for(None, Path("a.PARQUET"), on_terminal=True) == "parquet"
    assert form_for("csv", Path("a.parquet"), on_terminal=True) == "csv"
    with pytest.raises(CommandFailed, match=r"--out rows\.xls: give the format with -o"):
        form_for(None, Path("rows.xls"), on_terminal=True)
    with pytest.raises(CommandFailed, match="cannot show Parquet"):
        form_for("parquet", None, on_terminal=True)


def test_a_table_is_aligned_as_a_terminal_shows_it() -> None:
    rows = [["a", "1"], ["漢字", "12"], [None, None]]
    assert table(["name", "n"], rows, [False, True]).splitlines() == [
        "name     n",
        "────  ────",
        "a        1",
        "漢字    12",
        "NULL  NULL",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert table(["a"], [], [False]) == "a\n─\n"


def test_no_cell_moves_the_cursor_or_fills_the_screen() -> None:
    assert shown("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert len(shown("x" * 1000)) == CELL_CHARS_MAX


def test_heads_of_csv_are_quoted_like_its_rows() -> None:
    assert csv_line(["a", 'b "c", d']) == b'a,"b ""c"", d"\n'


# --- the bar ---


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.painted = threading.Event()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self.painted.set()
        return super().write(text)


def test_a_bar_is_painted_and_is_gone_at_the_end() -> None:
    screen = Screen(terminal=True)
    watcher = Watcher(lambda: Tasks(1, 2), screen)
    assert screen.painted.wait(PATIENCE_S)
    watcher.stop()
    watcher.stop()
    assert "1/2 tasks" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_what_is_over_at_once_is_not_painted() -> None:
    screen = Screen(terminal=True)
    Watcher(lambda: Tasks(1, 2), screen).stop()
    assert screen.getvalue() == ""


def test_a_query_that_has_no_tasks_yet_is_being_planned() -> None:
    assert bar(Tasks(0, 0), 3.2) == "query: planning 3 s"
    assert plain(Tasks(0, 0), 3.2) == "query: planning, 3 s so far"
    assert bar(Tasks(15, 30), 9) == f"query {'━' * 15}{'╌' * 15} 15/30 tasks 9 s"


# --- the prompt ---


class Recorder:
    """Remembers what a prompt asks."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def run(self, sql: str) -> bool:
        self.asked.append(" ".join(sql.split()))
        return True

    def list(self) -> bool:
        self.asked.append("list")
        return True

    def describe(self, name: str) -> bool:
        self.asked.append(("describe", name))
        return True


def conversation(*lines: str | type[BaseException]) -> tuple[list[Any], list[str]]:
    """What is asked of the answers, and which prompts were shown, while someone types these lines."""
    typed = iter((*lines, EOFError))
    prompts: list[str] = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    recorder = Recorder()
    Prompt(recorder, read).loop()
    return recorder.asked, prompts


def test_a_statement_goes_on_until_its_semicolon() -> None:
    asked, prompts = conversation("SELECT 1", "  + 1", "; SELECT 2;", "SELECT 3;")
    assert asked == ["SELECT 1 + 1", "SELECT 2", "SELECT 3"]
    assert prompts == [FIRST, MORE, MORE, FIRST, FIRST]


def test_what_follows_a_semicolon_begins_the_next_statement() -> None:
    asked, prompts = conversation("SELECT 1; SELECT", "2;")
    assert asked == ["SELECT 1", "SELECT 2"]
    assert prompts == [FIRST, MORE, FIRST]


def test_an_interrupt_gives_up_what_was_typed_and_not_the_prompt() -> None:
    asked, prompts = conversation("SELECT 'open", KeyboardInterrupt, "SELECT 2;")
    assert asked == ["SELECT 2"]
    assert prompts == [FIRST, MORE, FIRST, FIRST]


def test_commands_begin_with_a_backslash(capsys: pytest.CaptureFixture[str]) -> None:
    asked, _ = conversation("\\d", "\\d orders;", "\\?", "\\q", "SELECT 1;")
    assert asked == ["list", ("describe", "orders")]
    assert "\\d NAME" in capsys.readouterr().err


def test_history_is_kept_where_states_are_kept(tmp_path: Path) -> None:
    assert history_file({"XDG_STATE_HOME": "/x"}) == Path("/x/topics/sql_history")
    assert history_file({"HOME": "/home/a"}) == Path("/home/a/.local/state/topics/sql_history")


def test_the_command_needs_no_spark_for_its_help() -> None:
    import subprocess
    import sys

    script = "import sys, json\nfrom topics.cli import run\nrun(['sql', '--help'])\n"
    script += "print(json.dumps([*sys.modules]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--schema TOPIC=DDL" in done.stdout
    assert not {"pyspark", "pyarrow", "httpx2"} & set(json.loads(done.stderr))
