-- refused: 4: the mock of t: a case has no option wehn
t = Tool { description = "x", function() end }
Procedure { function() end }
Mocks { t = {conditional = {{when = {n = 1}, wehn = {n = 2}, returns = 1}}} }
