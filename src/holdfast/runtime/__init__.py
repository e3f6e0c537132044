"""Where things happen: declarations, the call flow, its drivers, live runs."""
