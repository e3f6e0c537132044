-- refused: 4: the mock of a: tool_calls takes
a = Agent { model = "gpt-5" }
Procedure { function() end }
Mocks { a = {tool_calls = {{name = "t"}}} }
