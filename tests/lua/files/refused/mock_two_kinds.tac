-- refused: 4: the mock of t has returns and temporal
t = Tool { description = "x", function() end }
Procedure { function() end }
Mocks { t = {returns = 1, temporal = {1, 2}} }
