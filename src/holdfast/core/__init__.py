"""The pure part: values in, values out. No I/O, clock, randomness, threads or logging."""
