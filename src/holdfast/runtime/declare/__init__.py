"""Steps, tools and agents as they are declared: parameters, types, options. Nothing here executes them."""
