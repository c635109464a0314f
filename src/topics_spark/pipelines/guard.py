"""What the SQL of a definition may use: its own views and pure functions; no files, catalogs, commands or Java.

The text is parsed and checked before it is run, because Spark runs commands as soon as it gets them. Everything that
is not on the lists is refused, so that a newer Spark does not open a new way around.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from topics.model.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Refuses a path in place of a table; set on every session that runs definitions.
SESSION_SETTINGS: Final = {"spark.sql.runSQLOnFiles": "false"}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CATALYST: Final = "org.apache.spark.sql.catalyst."
# The parts of a query, by package.
ALLOWED: Final = {
    f"{_CATALYST}plans.logical": words(
        """
        Aggregate AsOfJoin Cube Deduplicate Distinct Except Expand Filter Generate GlobalLimit GroupingSets Intersect
        Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation Pivot Project RebalancePartitions Repartition
        RepartitionByExpression Rollup Sample Sort SubqueryAlias Tail Transpose Union Unpivot
        UnresolvedEventTimeWatermark UnresolvedHint UnresolvedWith WithWindowDefinition
        """
    ),
    f"{_CATALYST}analysis": words(
        """
        MultiAlias NamedParameter UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction
        UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedNamedLambdaVariable UnresolvedOrdinal
        UnresolvedRegex UnresolvedRelation UnresolvedStar UnresolvedStarExcept UnresolvedStarExceptOrReplace
        UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction UnresolvedWindowExpression
        """
    ),
}
_EXPRESSIONS: Final = f"{_CATALYST}expressions"
TABLE_FUNCTIONS: Final = words(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
    variant_explode_outer
    """
)
FORBIDDEN_FUNCTIONS: Final = frozenset({"java_method", "reflect", "try_reflect"})


def check_sql(spark: SparkSession, sql: str, views: Collection[str], field: str = "sql") -> None:
    """Refuse everything but a query over these views; Spark's ParseException has the line of a syntax error."""
    nodes = parsed(spark, sql)
    named = {view.lower() for view in views}
    named.update(name.lower() for node in nodes for name in names_of_with(node))
    for node in nodes:
        kind = kind_of(node)
        if not is_of_a_query(node):
            raise InvalidRequest(f"{field} must be a plain query: {kind} is not allowed in a pipeline", field=field)
        match kind:
            case "UnresolvedRelation":
                name = parts(node["multipartIdentifier"])
                if len(name) != 1 or name[0].lower() not in named:
                    there = ", ".join(sorted(views))
                    raise InvalidRequest(
                        f"{field} reads {'.'.join(name)}; the views of this pipeline are {there}", field=field
                    )
            case "UnresolvedFunction" if parts(node["nameParts"])[-1].lower() in FORBIDDEN_FUNCTIONS:
                raise InvalidRequest(f"{field}: {node['nameParts']} must not be called in a pipeline", field=field)
            case "UnresolvedTableValuedFunction" if parts(node["name"])[-1].lower() not in TABLE_FUNCTIONS:
                raise InvalidRequest(f"{field}: {node['name']} must not be read in a pipeline", field=field)
            case _:
                pass


def parsed(spark: SparkSession, sql: str) -> list[dict[str, Any]]:
    """Every node of the parsed text, before any name in it is resolved."""
    parser = cast("Any", spark)._jsparkSession.sessionState().sqlParser()
    return list(_nodes(json.loads(parser.parsePlan(sql).toJSON())))


def kind_of(node: dict[str, Any]) -> str:
    return node["class"].rstrip("$").rpartition(".")[2]


def is_of_a_query(node: dict[str, Any]) -> bool:
    package, _, kind = node["class"].rstrip("$").rpartition(".")
    return kind in ALLOWED.get(package, ()) or package.startswith(_EXPRESSIONS)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node of a plan, including those of subqueries and common table expressions."""
    if isinstance(tree, dict):
        fields = cast("dict[str, Any]", tree)
        if "class" in fields:
            yield fields
        tree = list(fields.values())
    if isinstance(tree, list):
        for part in cast("list[Any]", tree):
            yield from _nodes(part)


def names_of_with(node: dict[str, Any]) -> list[str]:
    return [relation["_1"] for relation in node.get("cteRelations", ())]


def parts(text: str) -> list[str]:
    """`[a, b]`, as Spark writes a name of several parts."""
    return text.strip("[]").split(", ")
