-- refused: 4: the mock of a has message and returns
a = Agent { model = "gpt-5" }
Procedure { function() end }
Mocks { a = {message = "hi", returns = 1} }
