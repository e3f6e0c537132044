-- refused: 2: filters is not supported
local f = filters.last_n(5)
