-- refused: 2: state cannot be used while the file is loaded
state.x = 1
