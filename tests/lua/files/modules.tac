-- require within the project; a module's tools take their names from its fields.
local math_tools = require("lib.math_tools")
local again = require("lib/math_tools")
Mocks { square = {returns = 16} }
Procedure {
  function()
    assert(require("lib.math_tools") == math_tools and again.pi == 3)
    return math_tools.square({n = 4})
  end
}
Specification{from = "modules.spec"}
