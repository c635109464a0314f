"""All topics as a fold of ops: deciding, committing, publishing, checkpoints."""
