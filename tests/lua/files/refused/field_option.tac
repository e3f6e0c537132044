-- refused: 3: field.string has no option requird
Procedure {
  input = {s = field.string{requird = true}},
  function() end
}
