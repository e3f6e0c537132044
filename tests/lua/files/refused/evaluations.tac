-- refused: 2: Evaluations is not supported
Evaluations({dataset = {}})
