-- refused: 2: provider 'acme' is not supported
a = Agent { provider = "acme", model = "x" }
