"""Sentences for people, made here and nowhere else: for the CLI, for errors, and for every other interface.

`text` makes values and times readable and harmless, `timeline` has a sentence for each kind of event, `waiting` says
what a run is waiting for, and `advice` how it continues. Data goes in, text comes out; nothing is read or written.
"""
