-- refused: 2: mcp is not supported
tools = mcp.server("files")
