"""Where a pipeline's state is, and whether a run may continue from it."""
