-- refused: 2: Context is not supported
c = Context { from = "x" }
