"""What every layer speaks: records, configuration, ops, errors, settings, time."""
