"""Commands that send messages and list actors."""
