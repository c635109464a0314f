"""Commands for operators of a server: doctor, top, compact, promote."""
