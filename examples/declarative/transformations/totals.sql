CREATE MATERIALIZED VIEW totals AS
SELECT tag, count(*) AS orders, sum(total) AS total FROM orders GROUP BY tag;
