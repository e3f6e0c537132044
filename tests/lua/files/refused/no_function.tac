-- refused: 2: Procedure needs a function
Procedure { input = {} }
