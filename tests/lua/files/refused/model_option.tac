-- refused: 2: Agent a: model has no option reasoning_effort
a = Agent { model = {name = "gpt-5", reasoning_effort = "low"} }
Procedure { function() end }
