"""The pure part: values in, values out. No I/O, no clock, no randomness, no threads, no logging."""
