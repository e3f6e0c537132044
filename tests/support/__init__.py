"""Machinery that tests stand on: real servers and real network faults. No test lives here."""
