"""`python -m holdfast.cli`: the command line where the script `holdfast` is not on the path."""

from holdfast.cli import main

main()
