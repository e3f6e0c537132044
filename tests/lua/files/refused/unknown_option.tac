-- refused: 3: Tool t has no option descripton

t = Tool { descripton = "misspelt", function() end }
