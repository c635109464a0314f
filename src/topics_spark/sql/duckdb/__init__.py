"""Small questions without Spark: those that DuckDB answers alike."""
