"""What all layers share: requests, configuration, errors, settings, time."""
