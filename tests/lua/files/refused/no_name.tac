-- refused: 2: this Tool has no name
local t = Tool { description = "x", function() end }
