"""How each derived table is made from `entries`: one module per table, pure functions."""
