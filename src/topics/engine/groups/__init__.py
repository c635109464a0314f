"""Consumer groups: who was handed which records, and how far each group is."""
