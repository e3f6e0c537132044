-- refused: 2: Hitl is not supported
Hitl { approve = {} }
