-- refused: 2: Module is not supported
m = Module { signature = "q -> a" }
