"""`signalhub demo`: a shop under load, whose parts can be killed, and a ledger that stays exact."""
