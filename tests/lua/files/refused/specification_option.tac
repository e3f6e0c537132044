-- refused: 3: Specification has no option form
Procedure { function() end }
Specification { form = "x.spec" }
