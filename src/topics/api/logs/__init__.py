"""The log of the process: lines for people or machines, one for each request if that is wanted, traces."""
