-- refused: 2: IncludeTasks is not supported
IncludeTasks("other.tac")
