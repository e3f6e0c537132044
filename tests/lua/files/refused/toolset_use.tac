-- refused: 2: Toolset takes tools=
t = Toolset { use = "plugin.py" }
