"""The commands of the `topics` program, one file each."""
