-- refused: 3: Toolset has no option filter
t = Tool { description = "x", function() end }
s = Toolset { tools = {t}, filter = "x" }
Procedure { function() end }
