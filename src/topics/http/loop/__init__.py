"""The event loop's time: ends of ticks, the pace of long work, its slices, the watchdog."""
