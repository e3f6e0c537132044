"""The pure part: values in, values out. No I/O, no clock, no chance, no threads, no logging."""
