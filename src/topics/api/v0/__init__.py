"""The `/v0` API: one file per resource."""
