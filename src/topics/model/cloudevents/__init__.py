"""CloudEvents 1.0: from HTTP and its JSON format to records, and back."""
