"""Machinery that tests are on: real servers and real network faults. No test lives here."""
