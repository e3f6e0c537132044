local M = {pi = 3}
M.square = M.square or Tool { description = "Square.", risk = "read", input = {n = field.number{required = true}}, function(args) return args.n * args.n end }
return M
