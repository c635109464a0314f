"""How long tests wait for what is bound to happen. Only a failure takes that long: no test needs a quick machine."""

PATIENCE_S = 300.0
