"""Consumer groups: which consumer has which records, and how far each group is."""
