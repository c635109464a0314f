"""Tables: how their columns change, one row of a key, and the open formats Delta and Iceberg."""
