-- refused: 2: is not the name of a module
local x = require("../../secret")
