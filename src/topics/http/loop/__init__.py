"""The event loop's time: ends of ticks, slices of long work, the watchdog."""
