-- refused: 3: Procedure: input: field n: the default of n must be a number

Procedure { input = {n = field.number{default = "x"}}, function() end }
