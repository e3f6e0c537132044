-- refused: 3: Task is not supported

Task { entry = function() end }
