"""A Spark that stays for the next query."""
