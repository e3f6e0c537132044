-- refused: 2: Signature is not supported
local s = Signature("question -> answer")
