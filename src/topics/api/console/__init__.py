"""The console in a browser: its files, as they are served, and what they may load."""
