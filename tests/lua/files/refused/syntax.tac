-- refused: 3: expected near '='
Procedure {
  function( = end
}
